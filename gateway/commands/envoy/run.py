"""``kvgate envoy``: reads the configuration, prints Envoy's, and says on the other output what it cannot say in it."""

from __future__ import annotations

import argparse
import ssl
import sys
from collections.abc import Mapping

from gateway.commands.envoy.document import as_yaml, document, notes
from gateway.commands.envoy.hosts import split_proxy
from gateway.commands.envoy.wanted import SYSTEM_CA, Address, Mode, Wanted
from gateway.config.load import load
from gateway.config.settings import Config
from gateway.epp.settings import PickerSettings
from gateway.errors import ConfigError

ANYWHERE = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}
"""All addresses of a machine -> the one by which it reaches itself."""


def run(options: argparse.Namespace, environ: Mapping[str, str]) -> int:
    """Returns the exit code: 0. Raises ConfigError."""
    config = load(options.config, environ)
    wanted = wanted_of(config, options)
    print(as_yaml(document(config, wanted), of=str(options.config)), end="")
    for note in notes(config, wanted):
        print(f"kvgate: {note}", file=sys.stderr)
    return 0


def wanted_of(config: Config, options: argparse.Namespace) -> Wanted:
    """What the options say; what they leave open is the configuration's. Raises ConfigError."""
    epp = config.epp or PickerSettings()  # where `kvgate epp` listens if nothing says it
    pickers = options.picker or [_reachable(epp.listen)]
    return Wanted(
        listen=_address("--listen", options.listen or _listen(config)),
        admin=_address("--admin", options.admin),
        pickers=tuple(_address("--picker", text) for text in pickers),
        mode=Mode(options.mode),
        picker_tls=epp.tls is not None or options.picker_ca is not None,
        picker_ca=options.picker_ca,
        system_ca=ssl.get_default_verify_paths().cafile or SYSTEM_CA,
        fail_open=not options.fail_closed,
    )


def _address(option: str, text: str) -> Address:
    try:
        found = Address.parse(text)
    except ValueError as error:
        raise ConfigError(f"{option}: {error}") from None
    if found.port == 0:
        raise ConfigError(f"{option}: give a port that is known beforehand: {text!r} is any free one")
    return found


def _listen(config: Config) -> str:
    """Where kvgate would serve clients if Envoy did not. Raises ConfigError."""
    if split_proxy(config) is not None:
        raise ConfigError(
            "give --listen: with epp.split there is a proxy where the configuration lets clients be served"
        )
    return f"{config.listen.host}:{config.listen.port}"


def _reachable(listens: str) -> str:
    """Where this machine reaches what listens there."""
    host, _, port = listens.rpartition(":")
    return f"{ANYWHERE.get(host, host)}:{port}"
