"""What one group owes another: pins of forks, fences of buckets, and an outbox that is sent until acknowledged. Start reading at pins.py."""
