"""Runs `reshape builder`, which builds the images of records with a base and no image, as the paper's launcher does.

Promises: an image is built from a copy of the code, so that its tag stands for what is in it; records of the same
content share one; nothing but folders below `image_code` and images of registries is read; a build ends soon after its
job has; what a killed builder has left to do the next one does, since a job waits as long as it has no image. It is a
process of its own, since a build runs what a record names, and the launcher holds keys.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from coordinator.adapters.clock import SystemClock
from coordinator.config import IMAGE_REPOSITORY, from_environment
from coordinator.errors import Conflict, Fatal, Rejected, ReshapeError, Transient
from coordinator.model.records import show
from coordinator.model.schema import dataset_fields, image_fields
from coordinator.model.tables import JobChanges, JobRow
from coordinator.ports import Clock, Store
from coordinator.stores.elector import Elector, Holder
from coordinator.stores.opening import open_store
from launcher import containerize, playbook
from launcher.containerize import Image

TERM = "builder"
POLL_S = 2.0
LINES = 5  # of what a failed build said last
CODE = "/code"  # where playbooks/training.Containerfile puts it
NOT_COPIED = shutil.ignore_patterns("__pycache__", ".git")
FOR_BUILDAH = (
    "BUILDAH_ISOLATION",
    "CONTAINERS_CONF",
    "CONTAINERS_REGISTRIES_CONF",
    "CONTAINERS_STORAGE_CONF",
    "HTTPS_PROXY",
    "HTTP_PROXY",
    "NO_PROXY",
    "REGISTRY_AUTH_FILE",
    "SSL_CERT_FILE",
    "STORAGE_DRIVER",
    "XDG_RUNTIME_DIR",
)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BuilderSettings:
    """Times in seconds."""

    store: str = ""
    """URL of the store that the coordinators act on."""
    image_repository: str = ""
    """Where the images go, as the coordinators have it."""
    image_code: str = ""
    """The folder below which the `code` of records lies; nothing else is built into images."""
    image_wheels: str = ""
    """A folder of wheels, the only place to install packages from; empty: where pip finds them."""
    build_timeout_s: float = 3600.0
    """How long one build may take, with its push."""
    retry_s: float = 1.0
    """Pause before the first retry of a build; doubles each time."""
    term_s: float = 15.0
    """How long a builder acts after it last renewed its term, as a coordinator does."""

    def __post_init__(self) -> None:
        for name in ("build_timeout_s", "retry_s", "term_s"):
            if not 0 < getattr(self, name) < 86_400:
                raise ValueError(f"{name} must be a number of seconds above 0, not {getattr(self, name)!r}")
        if not self.store.startswith("mongodb"):
            raise ValueError("store must be the mongodb:// URL that the coordinators use")
        if not IMAGE_REPOSITORY.fullmatch(self.image_repository):
            raise ValueError("image_repository must be that of the coordinators, such as registry.example/trainings")
        for name in ("image_code", "image_wheels"):
            folder = getattr(self, name)
            if folder and not (Path(folder).is_absolute() and Path(folder).is_dir()):
                raise ValueError(f"{name} must be the full path of a folder, not {folder!r}")


def read(environment: Mapping[str, str]) -> BuilderSettings:
    """Return the settings. `Rejected` with the variable or the program that is missing or wrong."""
    try:
        for name in ("STORE", "IMAGE_REPOSITORY", "IMAGE_CODE"):
            if not environment.get(f"RESHAPE_{name}"):
                raise ValueError(f"RESHAPE_{name} is missing")
        settings = from_environment(BuilderSettings, environment)
    except ValueError as error:
        raise Rejected(f"{error}.") from None
    if not playbook.installed():
        raise Rejected(playbook.NOT_INSTALLED)
    if shutil.which("buildah", path=playbook.search_path()) is None:
        raise Rejected(containerize.NO_BUILDAH)
    return settings


def run(environment: Mapping[str, str], playbooks: Path) -> int:
    """Build until SIGTERM or SIGINT; return the exit status. `Rejected` with a sentence if it cannot start."""
    settings = read(environment)
    clock = SystemClock()
    store = open_store(settings.store)
    elector = Elector(store, clock, settings.term_s, Holder.of_process(os.getpid()), TERM)
    try:
        with tempfile.TemporaryDirectory(prefix="reshape-builder-") as folder:
            builder = ImageBuilder(store, clock, elector, settings, playbooks, Path(folder))
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, lambda *_: builder.stop())
            builder.serve()
    finally:
        store.close()
    return 0


class ImageBuilder:
    """`serve` builds one image after the other until `stop`, from any thread."""

    def __init__(
        self, store: Store, clock: Clock, elector: Elector, settings: BuilderSettings, playbooks: Path, folder: Path
    ) -> None:
        """`folder`: of this process alone, for copies of code and for playbooks."""
        self._store = store
        self._clock = clock
        self._elector = elector
        self._settings = settings
        self._playbooks = playbooks
        self._folder = folder
        self._stopping = threading.Event()
        self._rests: dict[str, float] = {}  # jobs whose build failed are left alone until then

    def stop(self) -> None:
        """End `serve`, and the build under way, which the next builder begins anew."""
        self._stopping.set()

    def serve(self) -> None:
        threading.Thread(target=self._keep_term, name="term", daemon=True).start()
        told = ""
        while not self._stopping.is_set():
            trouble = ""
            try:
                self.turn()
            except Transient as error:
                trouble = str(error)
            if trouble and trouble != told:
                log.warning("%s", trouble)
            told = trouble
            self._stopping.wait(POLL_S)
        with suppress(ReshapeError):
            self._elector.resign()

    def _keep_term(self) -> None:
        """Renew the term while much code is copied."""
        while not self._stopping.wait(self._elector.term_s / 5):
            if self._elector.leads:
                with suppress(ReshapeError):
                    self._elector.try_to_lead()

    def turn(self) -> None:
        """Build all images that are wanted now, the longest wanted first, unless another builder acts."""
        if not self._elector.try_to_lead():
            return
        waiting = [row for row in self._store.list("jobs", {"closed": False}) if _waits_for_image(row)]
        self._rests = {key: at for key, at in self._rests.items() if key in {str(row["_id"]) for row in waiting}}
        for row in sorted(waiting, key=lambda row: (row.get("submit_ts") or 0.0, str(row["_id"]))):
            if self._clock.now() >= self._rests.get(str(row["_id"]), 0.0) and not self._is_over(row):
                self._build_image(row)

    def _build_image(self, row: JobRow) -> None:
        name = ""
        try:
            with tempfile.TemporaryDirectory(dir=self._folder) as work:
                image = self._describe_image(row, Path(work) / "code")
                name = image.name
                self._write_job(row, {"image_build": {**(row.get("image_build") or {}), "image": name}})
                log.info("job %s: builds %s", row.get("job_id"), name)
                self._play_build(row, image)
        except (Rejected, Fatal, Transient) as failed:
            if not self._is_over(row):
                self._note_failure(row, name, str(failed))
            return
        log.info("job %s: has its image %s", row.get("job_id"), name)
        self._write_job(row, {"image": name, "code": CODE, "image_build": None})

    def _play_build(self, row: JobRow, image: Image) -> None:
        given = containerize.variables(image, unchanged=True)
        limit_s = self._settings.build_timeout_s
        play = self._playbooks / "containerize.yml"
        playbook.run(play, self._folder, given, limit_s, lambda: self._is_over(row), FOR_BUILDAH, LINES)

    def _describe_image(self, row: JobRow, copy: Path) -> Image:
        """Copy the code, and return what the image is made of, with a tag that stands for that."""
        folder = self._path_below_code(row["code"], "code")
        if not folder.is_dir():
            raise Rejected(f"its code {show(row['code'])} is no folder below {self._settings.image_code}")
        try:
            shutil.copytree(folder, copy, symlinks=True, ignore=NOT_COPIED)
        except OSError as error:  # which lists each file, where several cannot be read
            reason = error.args[0][0][2] if isinstance(error, shutil.Error) else error
            raise Rejected(f"its code cannot be copied: {reason}") from None
        packages = row.get("requirements") or ()
        dataset = None if dataset_fields.address(row) else row.get("dataset")
        wheels = Path(self._settings.image_wheels) if self._settings.image_wheels else None
        image = Image(
            self._settings.image_repository, str(row["base"]), copy, dataset=dataset, wheels=wheels, push=True
        )
        if isinstance(packages, str):
            packages = containerize.package_list(replace(image, requirements=self._package_file(packages))).splitlines()
        image = replace(image, packages=tuple(packages))
        return replace(image, name=containerize.tagged(image, self._playbooks))

    def _package_file(self, given: str) -> Path:
        file = self._path_below_code(given, "requirements")
        if not file.is_file():
            raise Rejected(f"its requirements {show(given)} are no file below {self._settings.image_code}")
        return file

    def _path_below_code(self, given: str, field: str) -> Path:
        """Return the path, whatever links lead to. `Rejected` unless it lies below the folder of all code."""
        root = Path(self._settings.image_code).resolve()
        path = (root / given).resolve()
        if not path.is_relative_to(root):
            raise Rejected(f"its {field} {show(given)} lies outside of {root}, from where images are built")
        return path

    def _is_over(self, row: JobRow) -> bool:
        """Return whether its image is not wanted any more, or not of this builder. A silent store changes nothing."""
        if self._stopping.is_set():
            return True
        with suppress(Transient):
            return not self._elector.try_to_lead() or not self._waits_still(row)
        return False

    def _waits_still(self, row: JobRow) -> bool:
        now = self._store.get("jobs", row["_id"])
        return now is not None and now.get("uid") == row.get("uid") and _waits_for_image(now)

    def _note_failure(self, row: JobRow, name: str, why: str) -> None:
        failures = int((row.get("image_build") or {}).get("failures") or 0) + 1
        log.warning("job %s: its image could not be built: %s", row.get("job_id"), why)
        self._rests[str(row["_id"])] = self._clock.now() + self._settings.retry_s * 2 ** (failures - 1)
        self._write_job(row, {"image_build": {"image": name or None, "failures": failures, "why": why}})

    def _write_job(self, row: JobRow, changes: JobChanges) -> None:
        """Write into its document, which the coordinator writes, too, as long as it waits for its image."""
        while (now := self._store.get("jobs", row["_id"])) is not None:
            if now.get("uid") != row.get("uid") or not _waits_for_image(now):
                return
            with suppress(Conflict):
                self._store.update("jobs", row["_id"], {"version": now.get("version")}, changes)
                return


def _waits_for_image(row: JobRow) -> bool:
    """Return whether an accepted, open job waits for its image."""
    wanted = bool(row.get("uid")) and row.get("closed") is False and not row.get("cancel")
    return wanted and row.get("state") == "submitted" and image_fields.is_wanted(row)
