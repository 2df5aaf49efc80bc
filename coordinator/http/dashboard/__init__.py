"""Serves the dashboard: pages of HTML, what changes in them as it changes, and actions, all behind a login."""
