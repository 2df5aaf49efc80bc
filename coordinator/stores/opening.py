"""Opens the store at a URL. Called by services and clients at their start.

Each store is imported only when its URL asks for it, so that a start on SQLite never loads pymongo.
"""

from __future__ import annotations

from coordinator.errors import Rejected
from coordinator.ports import Store

SQLITE = "sqlite:///"
MONGODB = ("mongodb://", "mongodb+srv://")


def open_store(url: str) -> Store:
    """The store at `sqlite:///file` (four slashes: absolute) or `mongodb://host:port/database`.

    The database of MongoDB is `reshape` if the URL names none. `Rejected` for any other URL or an unusable file;
    whether a MongoDB server answers shows only at the first call.
    """
    if url.startswith(SQLITE) and url != SQLITE:
        from coordinator.stores.sqlite import SqliteStore

        return SqliteStore(url.removeprefix(SQLITE))
    if url.startswith(MONGODB):
        from coordinator.stores.mongo import MongoStore

        return MongoStore(url)
    # Not the URL itself: it may hold a password.
    raise Rejected("The store URL is wrong: write sqlite:///reshape.db or mongodb://host:27017/reshape.")
