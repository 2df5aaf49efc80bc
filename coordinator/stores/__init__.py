"""Adapters of the Store port (SQLite, MongoDB), the cache over a store, leader election, and the initial rows."""
