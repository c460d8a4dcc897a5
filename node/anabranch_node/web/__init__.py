"""Durable Streams over HTTP without sockets: bytes of a request's head become a typed request, a result becomes the bytes of a response."""
