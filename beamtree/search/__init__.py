"""Ways of finding the best items beside a beam, and which is taken."""
