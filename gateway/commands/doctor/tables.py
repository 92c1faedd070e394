"""Prints the reports as a table, and below it a line for each thing to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from gateway.commands.doctor.finding import CHECKS, Level, Report
from gateway.commands.narrow import as_many_as_fit

WIDTH = 200
"""Width of the output if there is no terminal."""

STYLES = {Level.OK: "green", Level.NOTE: "dim", Level.WARNING: "yellow", Level.FAILED: "bold red"}
WORDS = {Level.OK: "note", Level.NOTE: "note", Level.WARNING: "warning", Level.FAILED: "FAILED"}


def show(reports: Sequence[Report], notes: Mapping[str, Sequence[str]], console: Console | None = None) -> None:
    """Print the reports, a table for each model."""
    console = console or Console()
    if not console.is_terminal:
        console.width = max(console.width, WIDTH)  # a file or a pipe has no width to wrap at
    for model in dict.fromkeys(report.model for report in reports):
        of_model = [report for report in reports if report.model == model]
        for table in _tables(model, of_model, console):
            console.print(table)
        for (level, line), whose in _lines(of_model).items():
            _say(console, level, f"{', '.join(whose)}: {line}")
        for said in notes.get(model, ()):
            _say(console, Level.WARNING, f"model {model}: {said}")
    failed = sum(report.level is Level.FAILED for report in reports)
    if failed:
        console.print(f"{failed} of {len(reports)} endpoints are not in order", style=STYLES[Level.FAILED])
    else:
        console.print(f"{len(reports)} of {len(reports)} endpoints are in order", style=STYLES[Level.OK])


def _say(console: Console, level: Level, line: str) -> None:
    console.print(f"{WORDS[level]}: ", style=STYLES[level], end="", markup=False, highlight=False)
    console.print(line, markup=False, highlight=False, soft_wrap=True)


def _lines(reports: Sequence[Report]) -> dict[tuple[Level, str], list[str]]:
    """The lines about the findings, worst first, each with its endpoints: equal findings share a line."""
    lines: dict[tuple[Level, str], list[str]] = {}
    for report in reports:
        for finding in report.findings:
            if finding.said:
                line = f"{finding.check}: {finding.said}" + (f"; {finding.remedy}" if finding.remedy else "")
                name = report.endpoint if finding.rank is None else f"{report.endpoint}/{finding.rank}"
                lines.setdefault((finding.level, line), []).append(name)
    return dict(sorted(lines.items(), key=lambda entry: -entry[0][0]))


def _tables(model: str, reports: Sequence[Report], console: Console) -> list[Table]:
    """A table with a row for each endpoint. On a terminal that is too narrow for it: tables with a row for each check,
    each with as many endpoints as fit, at least one."""
    columns = [[escape(report.endpoint), *(_cell(report, check) for check in CHECKS)] for report in reports]
    names = ["endpoint", *CHECKS]
    wide = _table(model, [list(row) for row in zip(names, *columns, strict=True)])
    return as_many_as_fit(console, wide, lambda some: _table(model, [names, *some]), columns)


def _cell(report: Report, check: str) -> str:
    finding = report.of(check)
    return f"[{STYLES[finding.level]}]{escape(finding.short)}[/]" if finding is not None else ""


def _table(model: str, columns: Sequence[Sequence[str]]) -> Table:
    """``columns``: each begins with its heading."""
    table = Table(title=escape(f"model {model}"), title_justify="left")
    for heading, *_ in columns:
        table.add_column(heading)
    for row in zip(*(cells for _, *cells in columns), strict=True):
        table.add_row(*row)
    return table
