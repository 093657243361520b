"""Fake packages, laid out as pip lays out what it installs."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent.parent


class Site:
    """A folder on `sys.path` that packages are installed into."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def install(
        self, name: str, version: str = "0.1", *, requires: Sequence[str] = (), plugin: str = ""
    ) -> None:
        """Install `packages/NAME.py` as the distribution plait-NAME with the plugin NAME."""
        module = f"plait_{name}"
        for source in HERE.glob(f"packages/{module}*.py"):
            shutil.copy(source, self.folder)
        self.metadata(f"plait-{name}", version, {plugin or name: module}, requires)

    def metadata(
        self, name: str, version: str, plugins: Mapping[str, str], requires: Sequence[str] = ()
    ) -> None:
        """Write the dist-info of a distribution."""
        info = self.folder / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
        lines += [f"Requires-Dist: {line}" for line in requires]
        info.joinpath("METADATA").write_text("\n".join(lines) + "\n")
        points = [f"{plugin} = {target}" for plugin, target in plugins.items()]
        info.joinpath("entry_points.txt").write_text("\n".join(["[plait]", *points, ""]))

    def environment(self) -> dict[str, str]:
        """The environment of a child process that sees these packages and ours."""
        return {**os.environ, "PYTHONPATH": os.pathsep.join([str(self.folder), str(ROOT)])}
