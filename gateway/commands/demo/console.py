"""What the demo prints: its progress and the final table, as plain lines if the output is no terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from gateway.commands.demo.drive import QUANTILES, Result, Sample
from gateway.commands.demo.scene import THROUGH_ENVOY, VARIANTS, Scene


class Ticker:
    """The progress of one run: a bar on a terminal, else a line for each quarter."""

    def __init__(self, console: Console, name: str, total: int) -> None:
        self._console = console
        self._name = name
        self._total = total
        self._done = 0
        self._errors = 0
        self._bar = Progress(
            TextColumn(f"{{task.description:<{max(len(variant.name) for variant in (*VARIANTS, THROUGH_ENVOY))}}}"),
            BarColumn(bar_width=32),
            MofNCompleteColumn(),
            TextColumn("requests"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}"),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task(name, total=total, note="starting engines and gateway")

    def __enter__(self) -> Ticker:
        self._bar.start()
        if not self._console.is_terminal:
            self._console.print(f"{self._name}: starting engines and gateway")
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def serving(self) -> None:
        self._bar.reset(self._task, note="")

    def tick(self, sample: Sample) -> None:
        self._done += 1
        self._errors += bool(sample.error)
        self._bar.update(self._task, advance=1, note=f"[red]{self._errors} failed" if self._errors else "")
        quarter = self._done * 4 // self._total
        if not self._console.is_terminal and quarter > (self._done - 1) * 4 // self._total:
            self._console.print(f"{self._name}: {self._done} of {self._total} requests, {self._errors} failed")


def introduce(console: Console, scene: Scene) -> None:
    console.print(
        f"{scene.engines} simulated engines, each like a 70B model on four H100:\n"
        f"{1 / scene.prefill_seconds:,.0f} prompt tokens/s, {1 / scene.step_seconds:,.0f} decode steps/s, "
        f"a KV cache of {scene.cache_tokens:,} tokens.\n"
        f"{scene.groups} long system prompts: together more than one cache holds, and less than {scene.engines} do.\n"
        f"{scene.users} users on each, {scene.turns} turns a chat, {scene.at_once} chats at a time.\n",
        highlight=False,
        soft_wrap=True,
    )


def table(results: Sequence[Result]) -> Table:
    columns = Table(title="The same traffic on fresh engines", title_justify="left", title_style="bold")
    columns.add_column("")
    for result in results:
        columns.add_column(result.name, justify="right")
    columns.add_row("requests", *(f"{result.requests}" for result in results))
    columns.add_row("errors", *(f"{result.errors}" for result in results))
    columns.add_row("prompt tokens", *(f"{result.prompt_tokens:,}" for result in results))
    columns.add_row("  from the engines' caches", *(f"{result.cached_tokens:,}" for result in results))
    columns.add_row("  share", *(f"{result.cached_share:.1%}" for result in results))
    for number, q in enumerate(QUANTILES):
        columns.add_row(f"TTFT p{q * 100:g}", *(f"{1000 * result.ttft[number]:,.0f} ms" for result in results))
    columns.add_row("run time", *(f"{result.seconds:.1f} s" for result in results))
    return columns
