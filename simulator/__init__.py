"""A simulated vLLM engine: ``EngineServer(EngineSettings())`` in a test, ``python -m simulator`` as a process.

``engine`` (with ``blocks``, ``job``, ``stats``) is a pure model; ``driver`` steps it in real time; ``virtual`` is the
same model in virtual time, for replays of hours; ``service`` puts prompts and answers around it; ``server`` speaks
vLLM's HTTP; ``publisher`` sends its KV events; ``transfer`` hands KV over to other engines, in a file for each
protocol. Imports nothing of the gateway: what they share, they share over the wire.
"""
