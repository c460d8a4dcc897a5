"""One Anabranch node. Pure from core/ up to service/; only drivers/ and main.py touch the world."""
