"""As the library has it: the newest folder `checkpoint-STEP`, None where there is none."""

from pathlib import Path


def get_last_checkpoint(folder):
    found = list(Path(folder).glob("checkpoint-*"))
    return str(max(found, key=lambda path: int(path.name.split("-")[1]))) if found else None
