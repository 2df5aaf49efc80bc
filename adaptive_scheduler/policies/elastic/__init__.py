"""SideCar scheduling: Algorithm 1 (reshape down for a waiting job) and Algorithm 2 (reshape up). Pure."""
