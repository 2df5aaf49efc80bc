"""The launcher on a cluster: launches and doors, from what the API server shows to what it is asked for."""
