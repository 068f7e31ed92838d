"""Taking a name for a run, so that no result is lost."""

import glob
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flcore.utils.errors import UsageError
from flcore.utils.locks import locked
from flcore.utils.paths import file_name
from flcore.utils.runs.provenance import but_rounds, code_digest, plain, settings_digest
from flcore.utils.runs.record import RunFiles, checkpoint_folder
from flcore.utils.runs.status import file_stamp, is_here, is_running, read_info

Info = dict[str, Any]  # the content of a run.json
LOCK = ".lock"


def claim_run(
    results_dir: Path | str,
    dataset: str,
    algorithm: str,
    goal: str,
    repeat: int,
    settings: Mapping[str, Any],
    overwrite: bool = False,
    reuse: bool = False,
    resume: bool = False,
    by_rounds: str = "",
    say: Callable[[str], None] = print,
) -> RunFiles:
    """Takes a name for a run, so that it never destroys a finished result, nor what other settings or a run still
    going wrote.

    The name with the user's goal is free if no repeat under it was made with other settings, and this repeat is not
    there or not finished; otherwise the goal gets six digits of the settings' digest, then a number. `reuse`: a
    finished result of the same settings and the same code is kept in place of a new run. `overwrite`: any result of
    the name is replaced, unless a run on this machine is still writing it. What is replaced stays until the new run
    writes its first arrays. Give the returned `goal` to the claims of a run's further repeats. `resume`: the name of
    an unfinished run with these settings and checkpoints is taken, to go on with it, or the checkpoints of one with
    fewer rounds are; and `reuse` is implied. `by_rounds`: why the latter would give other numbers; empty: it does not.

    Raises:
        UsageError: the folder cannot be written to, or the run to be resumed is still going or cannot be continued.
    """
    folder, goal = Path(results_dir), file_name(goal)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / LOCK).touch()
    except OSError as error:
        raise UsageError(f"--results_dir {folder} cannot be written to: {error.strerror}") from None
    digest, code = settings_digest(settings), code_digest()
    stem = f"{file_name(dataset)}_{file_name(algorithm)}"
    names = _Names(folder, stem, goal, repeat, plain(settings), digest, code, overwrite, reuse or resume)
    with locked(folder / LOCK):
        going_on, continued = names.unfinished() if resume else None, None
        name = going_on or names.free()
        if resume and not going_on and not names.is_reusable(names.earlier(name).get(repeat, {}), name):
            continued = names.shorter(by_rounds)
            if continued and names.is_own(continued):
                name = going_on = continued
            elif not continued and (line := names.difference()):
                say(line)
        previous, h5 = names.earlier(name).get(repeat), names.h5(name)
        files = RunFiles(h5, h5.with_suffix(".run.json"), name, False, {}, previous or {}, file_stamp(h5))
        files.resumed, files.continued = bool(going_on or continued), names.h5(continued) if continued else None
        if names.is_reusable(files.earlier, name):
            say(f"results: {h5} is finished with the same settings and is reused")
            files.info, files.reused = files.earlier, True
            return files
        for partial in folder.glob(f".{glob.escape(h5.stem)}.*"):  # of a run that was killed while it wrote
            if partial.is_file():
                partial.unlink(missing_ok=True)
        if name != goal and not going_on:
            say(
                f"results: the name '{goal}' belongs to another run; this one is named '{name}' (--reuse keeps a "
                f"finished run of the same settings and code in its place, --overwrite replaces what has the name)"
            )
        if previous is not None and not going_on:
            same = previous.get("settings_digest") == digest
            say(f"results: {h5}, an earlier run with {'the same' if same else 'other'} settings, is replaced")
        files.begin(
            dataset=dataset,
            algorithm=algorithm,
            goal=name,
            repeat=repeat,
            settings=settings,
            settings_digest=digest,
            code_digest=code,
        )
        return files


@dataclass(frozen=True)
class _Names:
    """The names that a run could take, and what lies under them. `name` is a goal in what follows."""

    folder: Path
    stem: str  # <dataset>_<algorithm>
    goal: str
    repeat: int
    settings: Mapping[str, Any]
    digest: str
    code: str
    overwrite: bool
    reuse: bool

    def h5(self, name: str) -> Path:
        return self.folder / f"{self.stem}_{name}_{self.repeat}.h5"

    def earlier(self, name: str) -> dict[int, Info]:
        """The run.json of every repeat with a file under this name; empty for PFLlib's own files."""
        stem = f"{self.stem}_{name}_"
        found = (re.fullmatch(re.escape(stem) + r"(\d+)\.(h5|run\.json)", path.name) for path in self.folder.iterdir())
        return {int(match[1]): read_info(self.folder / f"{stem}{match[1]}.run.json") for match in found if match}

    def candidates(self) -> Iterator[str]:
        """The user's own name, then with the settings' digest, then numbered."""
        end = f"-{self.digest[:6]}"
        suffixed = self.goal if self.goal.endswith(end) else self.goal + end
        yield from dict.fromkeys((self.goal, suffixed))
        number = 2
        while True:
            yield f"{suffixed}-{number}"
            number += 1

    def free(self) -> str:
        """The first name that may be taken."""
        return next(name for name in self.candidates() if self.is_free(name))

    def is_free(self, name: str) -> bool:
        runs = self.earlier(name)
        own = runs.get(self.repeat, {})
        if self.is_taken(own, name):
            return False
        alike = all(info.get("settings_digest") == self.digest for info in runs.values())
        return self.overwrite or (alike and (not self.is_finished(own, name) or self.is_reusable(own, name)))

    def is_taken(self, info: Info, name: str) -> bool:
        """Whether a run is still writing it; --overwrite does not wait for one on another machine."""
        return is_running(info, self.h5(name)) and (is_here(info) or not self.overwrite)

    def is_finished(self, info: Info, name: str) -> bool:
        return info.get("status") == "finished" and self.h5(name).exists()

    def is_reusable(self, info: Info, name: str) -> bool:
        same = info.get("settings_digest") == self.digest and info.get("code_digest") == self.code
        return self.reuse and same and self.is_finished(info, name)

    def with_checkpoints(self) -> Iterator[tuple[str, Info]]:
        """The names of this experiment's runs that have checkpoints, the asked one first, each with its run.json."""
        goal = re.sub(f"-{self.digest[:6]}(-\\d+)?$", "", self.goal)  # a further repeat's is the first one's name
        pattern = re.escape(checkpoint_folder(self.h5("*")).name).replace(re.escape("*"), "(.+)")
        found = (re.fullmatch(pattern, path.name) for path in self.folder.iterdir())
        for name in sorted((match[1] for match in found if match), key=lambda name: (name != self.goal, name)):
            info = read_info(self.h5(name).with_suffix(".run.json"))
            suffixed = f"{goal}-{info.get('settings_digest', '')[:6]}"
            if info.get("goal") == name and (name == goal or name.startswith(suffixed)):
                yield name, info

    def unfinished(self) -> str | None:
        """The name of the run with checkpoints that `resume` means, if there is one."""
        for name, info in self.with_checkpoints():
            if info.get("settings_digest") == self.digest and not self.is_finished(info, name):
                return self._at_rest(name, info)
        return None

    def shorter(self, by_rounds: str) -> str | None:
        """The name of the longest run with checkpoints that differs in nothing but having fewer rounds."""
        found, ours = [], self.settings.get("global_rounds", 0)
        for name, info in self.with_checkpoints():
            theirs = _settings(info)
            rounds = theirs.get("global_rounds")
            if but_rounds(theirs) == but_rounds(self.settings) and isinstance(rounds, int) and rounds < ours:
                found.append((rounds, self._at_rest(name, info)))
        if found and by_rounds:
            rounds, name = max(found)
            raise UsageError(
                f"--resume: {self.h5(name)} was planned for {rounds} rounds and cannot go on to {ours}, since "
                f"{by_rounds}; without --resume the run starts anew"
            )
        return max(found)[1] if found else None

    def is_own(self, name: str) -> bool:
        """Whether an unfinished run's name is for nothing else, so that a longer run takes its place."""
        runs = self.earlier(name)
        return runs.keys() == {self.repeat} and not self.is_finished(runs[self.repeat], name)

    def difference(self) -> str:
        """A line on the settings in which a run with checkpoints differs; empty if there is none."""
        for name, info in self.with_checkpoints():
            theirs = _settings(info)
            other = [key for key in sorted({*theirs, *self.settings}) if theirs.get(key) != self.settings.get(key)]
            parts = [f"{key} {theirs.get(key)} there and {self.settings.get(key)} here" for key in other]
            if parts:
                return f"--resume: {self.h5(name)} has checkpoints, but it is another run: {', '.join(parts[:4])}"
        return ""

    def _at_rest(self, name: str, info: Info) -> str:
        if self.is_taken(info, name):
            raise UsageError(f"--resume: {self.h5(name)} is still being written by process {info.get('pid')}")
        return name


def _settings(info: Info) -> Info:
    settings = info.get("settings")
    return settings if isinstance(settings, dict) else {}
