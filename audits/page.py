"""The page of audited baselines, from what was found."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

HEAD = """# Audited baselines

Does public code of a method compute what its paper says, and what fedsoft computes? For each repository below the same
points, the same batches in the same order and the same initial weights went through that code and through fedsoft, and
the results were compared number by number. *Equal* means within 1e-5 of the largest number (float32). Where they
differ, the reason is given, and what it does.

Nothing of other people's code is part of fedsoft. Each audit is one script in `audits/`, which says how to get the code
and needs a checkout that you make and read yourself:

```sh
python -m audits                          # what there is, and how to get the code
python -m audits fedem PATH/TO/FedEM      # one audit; what it finds goes to audits/results.json
python -m audits page                     # this page from it
```

Constructors that read data sets, loggers and log files were left out or replaced; classes and functions that compute
are the authors' own, and every change to them is named in the row. A test holds that this page says what
`audits/results.json` says.
"""

# Repository, file, what is there, why it was not run.
READ = (
    (
        "mapper", "litian96/ditto", "flearn/trainers_MTL/mapper.py",
        "`csolns.append(diff)` stands behind the loop over clients: of all that were selected only the last one's "
        "update is averaged.",
        "TensorFlow 1",
    ),
    (
        "ifca, other data", "jichan3751/ifca", "cifar/, femnist/", "not compared", "TensorFlow 1",
    ),
    (
        "fesem", "mingxuts/multi-center-fed-learning", "all_baselines/", "not compared", "TensorFlow 1",
    ),
    (
        "fedgroup", "morningD/FlexCFL", "flearn/trainer/", "not compared", "TensorFlow",
    ),
    (
        "apfl", "MLOPTPSU/FedTorch", "fedtorch/comms/", "not compared", "processes that talk by MPI",
    ),
    (
        "flux", "dariofenoglio98/FLUX", "flux/, public/", "not compared", "runs on an old Flower",
    ),
    (
        "fedgmm", "zshuai8/FedGMM_ICML2023", "client.py, learners/", "not compared", "not tried",
    ),
)  # fmt: skip


def render(found: Mapping[str, Mapping[str, Any]], about: Mapping[str, str]) -> str:
    """Return the page: a summary, then a part for each repository."""
    lines = [HEAD, "## Summary\n", "| method | code | by | equal | different | cannot run |"]
    lines.append("| --- | --- | --- | --- | --- | --- |")
    for name in sorted(found):
        one = found[name]
        verdicts = [finding["verdict"] for finding in one["findings"]]
        counts = [str(verdicts.count(verdict)) for verdict in ("equal", "different", "cannot run")]
        code = f"{_link(one['repository'])} at `{one['commit'][:8]}`"
        lines.append("| " + " | ".join([f"[{name}](#{name})", code, one["by"], *counts]) + " |")
    missing = [name for name in sorted(about) if name not in found]
    if missing:
        lines.append(f"\nNot run yet: {', '.join(missing)}.")
    for name in sorted(found):
        one = found[name]
        first = about[name].splitlines()[0] if name in about else ""
        lines += [f"\n## {name}\n", f"{first} {one['paper']}.\n"]
        lines += ["| what | verdict | largest difference, relative | |", "| --- | --- | --- | --- |"]
        for finding in one["findings"]:
            gap = "" if finding["difference"] is None else f"{finding['difference']:.1e}"
            lines.append(f"| {_cell(finding['what'])} | {finding['verdict']} | {gap} | {_cell(finding['remark'])} |")
    lines += ["\n## Read, not run\n", "| method | code | where | what was found | why it was not run |"]
    lines.append("| --- | --- | --- | --- | --- |")
    for method, repository, where, what, why in READ:
        lines.append(f"| {method} | {_link(repository)} | {where} | {what} | {why} |")
    return "\n".join(lines) + "\n"


def _link(repository: str) -> str:
    return f"[{repository}](https://github.com/{repository})"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
