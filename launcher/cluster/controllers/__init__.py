"""One controller per kind of object: launches, Volcano Jobs, Slamls, nodes."""
