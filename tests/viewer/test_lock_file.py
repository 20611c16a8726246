"""web/package-lock.json, from which `npm ci` installs the tools that build the page."""

import json
from pathlib import Path

WEB = Path(__file__).parents[2] / "web"


def test_lock_file_lists_every_dependency():
    packages = json.loads((WEB / "package-lock.json").read_text(encoding="utf-8"))["packages"]
    for name, package in packages.items():
        needed = {**package.get("dependencies", {}), **package.get("optionalDependencies", {})}
        missing = [other for other in needed if f"node_modules/{other}" not in packages]
        assert not missing, f"{name or 'the page'} needs {missing}"


def test_lock_file_has_the_versions_of_the_package():
    package = json.loads((WEB / "package.json").read_text(encoding="utf-8"))
    lock = json.loads((WEB / "package-lock.json").read_text(encoding="utf-8"))
    for name, version in package["devDependencies"].items():
        assert lock["packages"][f"node_modules/{name}"]["version"] == version
