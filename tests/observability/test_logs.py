from __future__ import annotations

import logging
import warnings

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.clock import ManualClock
from gateway.observability.logs import Bridge, configure
from gateway.observability.settings import LogSettings
from tests.observability.conftest import Lines
from tests.support.examples import examples


@pytest.fixture
def opened():
    """Logs that are closed again, whatever the test does."""
    all_logs = []

    def open_logs(*arguments, **options):
        logs = configure(*arguments, **options)
        all_logs.append(logs)
        return logs

    yield open_logs
    for logs in reversed(all_logs):
        logs.close()


def test_json_lines(opened, lines, clock) -> None:
    logs = opened(LogSettings(format="json"), stream=lines, clock=clock)
    logs.logger.info("hello", endpoint="a", ttft=0.25)
    logs.close()
    assert lines.text == (
        '{"time":"2027-01-15T08:16:40.000Z","level":"info","event":"hello","endpoint":"a","ttft":0.25}\n'
    )


@pytest.mark.parametrize(("form", "shown"), [("json", '"worker":3,'), ("text", "worker=3")])
def test_a_worker_s_lines_have_its_number(opened, lines, clock, form, shown) -> None:
    logs = opened(LogSettings(format=form), stream=lines, clock=clock, worker=3)
    logs.logger.info("hello", endpoint="a")
    made = logs.composer.line(logging.INFO, "request", clock.wall(), lambda of: {"of": of}, "b").decode()
    logs.close()
    assert shown in lines.text
    assert shown in made


def test_another_level_and_more_to_mask(opened, lines, clock) -> None:
    logs = opened(LogSettings(format="json", level="info"), stream=lines, clock=clock, secrets=["first-key"])
    log = logging.getLogger("kvgate.test")
    log.debug("not yet")
    logs.change("debug", ["second-key"])
    log.debug("now, with first-key and second-key")
    logs.logger.debug("ours")
    logs.change("error", [])
    log.warning("not any more")
    logs.logger.warning("nor this, with second-key")
    log.error("second-key is masked for good")
    logs.close()
    assert [orjson.loads(line)["event"] for line in lines.text.splitlines()] == [
        "now, with *** and ***",
        "ours",
        "*** is masked for good",
    ]


def test_text_lines(opened, lines, clock) -> None:
    logs = opened(LogSettings(format="text"), stream=lines, clock=clock)
    logs.logger.warning("hello", endpoint="a", ttft=0.25)
    logs.close()
    line = lines.text
    assert line.startswith("2027-01-15T08:16:40.000Z [warning")
    assert line.endswith("hello endpoint=a ttft=0.25\n")
    assert "\x1b" not in line, "no colours but on a terminal"


def test_the_standard_librarys_records_come_in_the_same_format(opened, lines) -> None:
    logs = opened(LogSettings(format="json"), stream=lines)
    logging.getLogger("kvgate.fleet").info("engine %s is up", "a")
    logging.getLogger("aiohttp.server").error("Unhandled exception")
    logs.close()
    ours, theirs = map(orjson.loads, lines.text.splitlines())
    assert (ours["level"], ours["event"], ours["logger"]) == ("info", "engine a is up", "kvgate.fleet")
    assert (theirs["level"], theirs["event"], theirs["logger"]) == ("error", "Unhandled exception", "aiohttp.server")


@pytest.mark.parametrize(
    ("level", "ours", "theirs"),
    [
        ("debug", ["debug", "info", "warning", "error"], ["warning", "error"]),
        ("info", ["info", "warning", "error"], ["warning", "error"]),
        ("error", ["error"], ["error"]),
    ],
)
def test_levels(opened, lines, level, ours, theirs) -> None:
    logs = opened(LogSettings(format="json", level=level), stream=lines)
    for name in ("debug", "info", "warning", "error"):
        getattr(logging.getLogger("kvgate.x"), name)("ours")
        getattr(logging.getLogger("httpcore"), name)("theirs")
    logs.close()
    seen = [orjson.loads(line) for line in lines.text.splitlines()]
    assert [line["level"] for line in seen if line["event"] == "ours"] == ours
    assert [line["level"] for line in seen if line["event"] == "theirs"] == theirs


@pytest.mark.parametrize("format_", ["json", "text"])
def test_no_key_is_logged(opened, lines, format_) -> None:
    logs = opened(LogSettings(format=format_), stream=lines, secrets=["conf1gured"])
    log = logging.getLogger("kvgate.x")
    logs.logger.info("a field", api_key="f1eld", headers={"Authorization": "Bearer n3sted"})
    log.warning("headers %r", {"authorization": "Bearer wr1tten"})
    log.warning("the engine said: wrong key conf1gured")
    try:
        raise ValueError("Bearer ra1sed conf1gured")
    except ValueError:
        log.exception("failed")
    logs.close()
    assert lines.text.count("***") >= 6
    for secret in ("f1eld", "n3sted", "wr1tten", "conf1gured", "ra1sed"):
        assert secret not in lines.text


@pytest.mark.parametrize("format_", ["json", "text"])
def test_a_traceback_without_the_values_of_variables(opened, lines, format_) -> None:
    def fails(prompt: str) -> None:
        raise ValueError("broken")

    logs = opened(LogSettings(format=format_), stream=lines)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            fails("a " + "private prompt")
        except ValueError:
            logging.getLogger("kvgate.x").exception("failed")
    logs.close()
    assert "ValueError: broken" in lines.text
    assert "in fails" in lines.text
    assert "a private prompt" not in lines.text


@examples(60)
@given(text=st.text(max_size=30), format_=st.sampled_from(["json", "text"]))
def test_a_clients_text_cannot_write_a_line_of_its_own(text, format_) -> None:
    lines = Lines()
    logs = configure(LogSettings(format=format_), stream=lines, clock=ManualClock())
    try:
        logs.logger.info("refused", error=text)
        logging.getLogger("kvgate.x").info("%s", text)
    finally:
        logs.close()
    assert lines.text.count("\n") == 2
    assert "\r" not in lines.text
    assert "\x1b" not in lines.text


def test_broken_text_is_shown_escaped(opened, lines) -> None:
    logs = opened(LogSettings(format="json"), stream=lines)
    logs.logger.info("refused", error="lone \ud800 surrogate")
    logs.close()
    assert orjson.loads(lines.text)["error"] == "lone \\ud800 surrogate"


def test_a_record_that_does_not_fit_its_arguments_is_no_failure(opened, lines, capsys) -> None:
    logs = opened(LogSettings(format="json"), stream=lines)
    # Given to the handler itself: the handlers of a test run raise where ours must not.
    bridge = Bridge(logs.logger)
    bridge.handle(logging.LogRecord("kvgate.x", logging.WARNING, __file__, 1, "%d and %d", ("one",), None))
    bridge.handle(logging.LogRecord("kvgate.x", logging.WARNING, __file__, 1, "next", None, None))
    logs.close()
    assert [orjson.loads(line)["event"] for line in lines.text.splitlines()] == ["next"]
    assert "Logging error" in capsys.readouterr().err


def test_odd_levels_count_as_the_one_below(opened, lines) -> None:
    logs = opened(LogSettings(format="json"), stream=lines)
    logging.getLogger("kvgate.x").log(25, "between info and warning")
    logging.getLogger("kvgate.x").log(70, "above all")
    logs.close()
    assert [orjson.loads(line)["level"] for line in lines.text.splitlines()] == ["info", "critical"]


def test_close_puts_logging_back(opened, lines) -> None:
    root, ours = logging.getLogger(), logging.getLogger("kvgate")
    before = (root.handlers[:], root.level, ours.level)
    logs = opened(LogSettings(), stream=lines)
    assert root.handlers != before[0]
    logs.close()
    logs.close()
    assert (root.handlers[:], root.level, ours.level) == before


def test_the_log_goes_to_stderr_and_stdout_stays_clean(opened, capfd) -> None:
    logs = opened(LogSettings(format="json"))
    logging.getLogger("kvgate.x").info("hello")
    logs.close()
    out, err = capfd.readouterr()
    assert out == ""
    assert orjson.loads(err)["event"] == "hello"
