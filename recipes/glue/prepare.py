#!/usr/bin/env python3
"""Write GLUE as the folders of JSON lines that this recipe reads. Needs `pip install datasets` and the internet, once.

    prepare.py --output data/glue [--tasks cola,rte]

A task that is there already is left as it is; each appears whole or not at all.
"""

import argparse
import json
import shutil
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from tasks import GLUE


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="folder of the tasks")
    parser.add_argument("--tasks", default=",".join(GLUE), help="separated by commas (default: all eight)")
    parser.add_argument("--source", default="nyu-mll/glue", help="data set: a name or a folder (default: %(default)s)")
    args = parser.parse_args()
    names = args.tasks.split(",")
    unknown = sorted(set(names) - set(GLUE))
    if unknown:
        parser.error(f"--tasks must be among {','.join(GLUE)}, but has {','.join(unknown)}")
    try:
        from datasets import load_dataset
    except ImportError:
        parser.error("the package datasets is needed: pip install datasets")
    for name in names:
        target, task = args.output / name, GLUE[name]
        if target.is_dir():
            sys.stderr.write(f"{target}: there already\n")
            continue
        partial = args.output / f".{name}.partial"
        shutil.rmtree(partial, ignore_errors=True)  # of a run that was stopped
        try:
            splits = {split: load_dataset(args.source, name, split=split) for split in ("train", *task.validation)}
        except (OSError, ValueError) as error:
            parser.exit(1, f"prepare.py: error: {args.source} has no {name}: {' '.join(str(error).split())}\n")
        partial.mkdir(parents=True)
        for split, examples in splits.items():
            with open(partial / f"{split}.jsonl", "w", encoding="utf-8") as stream:
                for example in examples:
                    kept = {field: example[field] for field in (*task.fields, "label")}
                    stream.write(json.dumps(kept, ensure_ascii=False) + "\n")
        partial.rename(target)
        sys.stderr.write(f"{target}: written\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
