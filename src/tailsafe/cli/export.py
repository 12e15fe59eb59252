"""`tailsafe export`: the policy of a run for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tailsafe.cli.app import JsonFlag, app, console, emit_json
from tailsafe.errors import InputError

if TYPE_CHECKING:
    from tailsafe.policies.export import Exported


@app.command()
def export(
    run: Annotated[Path, typer.Argument(help="A run folder, a saved policy, or pretrained:NAME.")],
    format: Annotated[
        str, typer.Option(help="safetensors (a folder for tailsafe.load_policy) or onnx (a file for any ONNX runtime).")
    ] = "safetensors",
    out: Annotated[
        Path | None, typer.Option(help="A new folder, or FILE.onnx (default: export or policy.onnx in the run).")
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Write the policy with all it needs inside, and check that what was written acts as the policy does.

    A folder with several seeds gives an export in each; their JSON is then a list under "runs".
    """
    from tailsafe.policies.export import export_onnx, export_safetensors, target_of
    from tailsafe.policies.policy import load_policy, policy_folders
    from tailsafe.policies.pretrained import own_copy

    folders = policy_folders(own_copy(run))
    if out is not None and len(folders) > 1:
        raise InputError(f"{run} holds {len(folders)} runs, which need a place each: name one, or export without --out")
    targets = [target_of(folder, out, format) for folder in folders]
    policies = [load_policy(folder) for folder in folders]
    write = export_onnx if format == "onnx" else export_safetensors
    reports = []
    for folder, policy, target in zip(folders, policies, targets, strict=True):
        exported = write(policy, target)
        reports.append({"run": str(folder)} | exported.to_json())
        if not json:
            _print(exported)
    if json:
        emit_json(reports[0] if len(reports) == 1 else {"runs": reports})


def _print(exported: Exported) -> None:
    out = console()
    out.print(f"policy: {exported.path}", markup=False)
    if exported.format == "safetensors":
        out.print("read again: the same policy, bit for bit")
        return
    out.print(
        f"{exported.observations} observations through {exported.compared_with} and JAX: actions differ by at most "
        f"{exported.largest_difference:.2g} of the {exported.relative_to} (allowed: {exported.tolerance:.2g})"
    )
