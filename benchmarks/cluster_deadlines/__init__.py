"""The six runs of seed 003 on the test bed's real Volcano: three of its algorithms, with and without deadlines."""
