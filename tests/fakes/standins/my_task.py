"""What a user brings along."""

model = module = data = None
