"""What `rtmc doctor` says of the SWE environment: which sandboxes, layers and programs work here.

What this is not: part of `rtmc.doctor`, which knows nothing of the environments' insides.
"""

from __future__ import annotations

import importlib.util
import shutil

from rtmc.doctor import Finding

_WITHOUT = {
    "bwrap": "commands of the SWE environment run in `unshare`, if that works",
    "unshare": "no second sandbox where bubblewrap is absent",
}


def sandbox_findings() -> list[Finding]:
    """A finding for each sandbox, for overlays, and for git; none without gymnasium, which the environments need."""
    if importlib.util.find_spec("gymnasium") is None:
        return []
    from rtmc.gymenvs.sandbox import probe_sandboxes
    from rtmc.gymenvs.swe.tree import probe_layers

    findings = []
    probes = {name: probe for name, probe in probe_sandboxes().items() if name in _WITHOUT}
    for name, probe in probes.items():
        if probe.works:
            findings.append(Finding(f"sandbox {name}", "ok", probe.why))
            continue
        without = _WITHOUT[name]
        if not any(other.works for other in probes.values()):
            without = "the SWE environment runs trusted agents only (`trusted=True`, no isolation)"
        findings.append(Finding(f"sandbox {name}", "missing", probe.why, without=without))
    why_not = probe_layers()["overlay"]
    if why_not:
        findings.append(Finding("tree layers", "missing", why_not, without="every SWE episode copies its tree"))
    else:
        findings.append(Finding("tree layers", "ok", "overlay: a work tree costs what is changed in it"))
    git = shutil.which("git")
    findings.append(
        Finding("git", "ok", git)
        if git
        else Finding(
            "git",
            "missing",
            "not on PATH",
            without="SWE tasks cannot be made: patches are applied by git",
            remedy="install git, e.g. apt-get install git",
        )
    )
    return findings
