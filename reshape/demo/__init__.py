"""`reshape demo`: the case study of the SideCar paper with real processes."""
