"""Order of waiting jobs, starvation prevention and backfill. Pure."""
