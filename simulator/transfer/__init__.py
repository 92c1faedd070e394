"""How the KV of a prompt gets from the engine that computed it to the one that answers: a file for each protocol.

``connect`` makes one rank's side of the protocol that the settings name. ``connector`` says what each side must do for
the engine; ``parameters`` what a client asks for; ``content`` what moves in place of KV. They tell a wrong KV from a
right one, so that an answer from blocks that were somebody else's is another answer.
"""
