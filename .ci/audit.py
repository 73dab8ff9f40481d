"""Known vulnerabilities of the packages that are installed, by pip-audit.

Says so and ends well where its database is out of reach; ends with 1 when something is known.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from sysconfig import get_path
from tempfile import TemporaryDirectory

PATIENCE = 300  # seconds for the whole audit


def main() -> int:
    """Audit, if that can be done here."""
    with TemporaryDirectory() as place:  # the environment that is audited stays as it is
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        pip += ["--retries", "0", "--timeout", "5", "--target", place]
        if subprocess.run([*pip, "pip-audit>=2.7"], capture_output=True, check=False).returncode:
            print("audit: pip-audit cannot be installed here: nothing was audited")
            return 0
        command = ["--skip-editable", "--progress-spinner", "off", "--timeout", "15", "--format", "json"]
        try:
            done = subprocess.run(
                [sys.executable, "-m", "pip_audit", *command, "--path", get_path("purelib")],
                capture_output=True, text=True, check=False, env=os.environ | {"PYTHONPATH": place}, timeout=PATIENCE,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            print(f"audit: its database did not answer within {PATIENCE} s: nothing was audited")
            return 0
    try:
        packages = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError):
        print(f"audit: pip-audit failed, nothing was audited: {done.stderr.strip().splitlines()[-1:]}")
        return 0
    skipped = [package["name"] for package in packages if "skip_reason" in package]
    if len(skipped) == len(packages):
        print("audit: the package index here knows of no vulnerabilities at all: nothing was audited")
        return 0
    known = [(package, flaw) for package in packages for flaw in package.get("vulns", [])]
    for package, flaw in known:
        fixed = ", ".join(flaw["fix_versions"]) or "no version yet"
        print(f"audit: {package['name']} {package['version']}: {flaw['id']}, fixed in {fixed}")
    print(f"audit: {len(packages) - len(skipped)} packages audited, {len(known)} known vulnerabilities"
          + (f"; not in the database: {', '.join(skipped)}" if skipped else ""))  # fmt: skip
    return 1 if known else 0


if __name__ == "__main__":
    sys.exit(main())
