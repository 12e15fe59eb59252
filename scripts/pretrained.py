"""Add a policy to the package: python scripts/pretrained.py RUN NAME [--limit D/UNIT --certify-episodes N].

RUN is the folder of a run with one seed, or `certified` in it; of several seeds, name the one to ship. Its policy is
copied to src/tailsafe/pretrained/NAME byte for byte, with the settings of its run and every so-many-th row of its log,
and judged there: 2,000 fresh episodes, and a certificate for --limit. Of policies for environments that are not in the
package, nobody else could play an episode: they are refused. A policy that breaks a limit is refused too, unless
--even-so is given; what the verdict is, users see.
"""

from __future__ import annotations

import argparse
import csv
import json
import shutil
import sys
from pathlib import Path

from tailsafe.errors import InputError
from tailsafe.evaluation.certificate import certify
from tailsafe.evaluation.environments import built_in
from tailsafe.evaluation.report import FILE_NAME
from tailsafe.evaluation.verdict import evaluate
from tailsafe.files import new_folder, read_object, write_json
from tailsafe.policies.policy import FOLDER, JSON_NAME, TENSORS_NAME, load_policy
from tailsafe.policies.pretrained import HOME, pretrained_names
from tailsafe.training.config import parse_limit

LOG, CONFIG = "metrics.csv", "config.json"
# Everybody downloads it: of a policy, and of the rows of a log.
LARGEST, ROWS = 3_000_000, 200


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("name", help="what follows pretrained:, as a rule the name of the task")
    parser.add_argument("--episodes", type=int, default=2000)
    parser.add_argument("--interval", default="distribution-free", choices=("distribution-free", "bootstrap"))
    parser.add_argument("--limit", action="append", help="certify this limit; one for each cost, as in 0.025/step")
    parser.add_argument("--certify-episodes", type=int, default=20_000)
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--even-so", action="store_true", help="ship a policy whose risk exceeds a limit")
    parser.add_argument("--replace", action="store_true", help="in place of the policy of that name")
    parser.add_argument("--home", type=Path, default=HOME, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    try:
        add(chosen)
    except InputError as error:
        sys.exit(f"error: {error}")


def add(chosen: argparse.Namespace) -> None:
    name, target = chosen.name, chosen.home / chosen.name
    if not name.replace("-", "").isalnum() or name != name.lower():
        raise InputError(f"name is {name!r}; it must be of small letters, digits and hyphens")
    if target.exists() and not chosen.replace:
        raise InputError(f"{target}: exists already; --replace puts another policy in its place")
    source = chosen.run / FOLDER if (chosen.run / FOLDER / JSON_NAME).is_file() else chosen.run
    described = load_policy(source).description
    if built_in(described) is None and described.task.problem is None:
        raise InputError(f"{chosen.run}: is for {described.task.name}, which is not in the package")
    size = (source / TENSORS_NAME).stat().st_size
    if size > LARGEST:
        raise InputError(f"{source / TENSORS_NAME}: {size:,} bytes; a pretrained policy has at most {LARGEST:,}")
    run = next((place for place in (source.parent, source) if (place / CONFIG).is_file()), None)
    if run is None:
        raise InputError(f"{chosen.run}: has no {CONFIG} beside its policy; give the folder of a run")
    chosen.home.mkdir(exist_ok=True)
    with new_folder(chosen.home / f"{name}.new") as folder:
        (folder / FOLDER).mkdir()
        for file in (JSON_NAME, TENSORS_NAME):
            shutil.copyfile(source / file, folder / FOLDER / file)
        write_json(folder / CONFIG, settings_of(run / CONFIG))
        thin(run / LOG, folder / LOG)
        judge(chosen, folder)
    if target.exists():
        shutil.rmtree(target)
    (chosen.home / f"{name}.new").rename(target)
    print(f"{target}: {sum(file.stat().st_size for file in target.rglob('*') if file.is_file()):,} bytes")
    print("there are:", ", ".join(pretrained_names()))


def settings_of(config: Path) -> dict[str, object]:
    """config.json, without the machine, and with the versions under a name that is not compared on every use."""
    content = read_object(config)
    dropped = {key: content.pop(key, None) for key in ("device", "versions", "start")}
    return content | {"trained_with": dropped["versions"]}


def thin(log: Path, target: Path) -> None:
    """At most `ROWS` rows, evenly spaced, the last among them."""
    with log.open(encoding="utf-8", newline="") as handle:
        header, *rows = csv.reader(handle)
    every = -(-len(rows) // ROWS)
    kept = rows[::-1][::every][::-1]
    with target.open("w", encoding="utf-8", newline="") as handle:
        csv.writer(handle, lineterminator="\n").writerows([header, *kept])


def judge(chosen: argparse.Namespace, folder: Path) -> None:
    """evaluation.json and, if a limit is given, certificate.json."""
    found = evaluate(folder, chosen.episodes, interval=chosen.interval, backend=chosen.backend)
    print(found)
    broken = [one.description.name for one in found.constraints if one.risk > one.description.limit]
    if found.exact is not None:  # which needs no estimate
        broken = [] if found.exact.feasible else [found.policy.task.name]
    if broken and not chosen.even_so:
        raise InputError(f"{chosen.run}: its risk exceeds the limit of {', '.join(broken)}")
    found.save(folder / FILE_NAME)
    if not chosen.limit:
        return
    stated = [parse_limit(text) for text in chosen.limit]
    limits, units = [value for value, _ in stated], [unit for _, unit in stated]
    proof = certify(folder, limits, units, episodes=chosen.certify_episodes, backend=chosen.backend)
    print(json.dumps({key: proof.to_json()[key] for key in ("certified", "risk", "upper", "episodes")}))
    # The episodes behind it can be played again: tailsafe certify --check.
    shutil.rmtree(folder / "certificate", ignore_errors=True)
    if not proof.certified:
        (folder / "certificate.json").unlink(missing_ok=True)


if __name__ == "__main__":
    main()
