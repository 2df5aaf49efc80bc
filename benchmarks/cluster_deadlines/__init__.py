"""The Slaml paper's six runs on the test bed's real Volcano: three of its algorithms, with and without deadlines."""
