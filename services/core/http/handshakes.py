"""Closing a listening socket to new connections without losing any whose handshake has begun."""

import ctypes
import socket
import struct
import sys
from contextlib import suppress

# asm-generic/socket.h and linux/bpf_common.h; Python has no names for them.
SO_ATTACH_FILTER = 26
LOAD_BYTE = 0x30  # BPF_LD | BPF_B | BPF_ABS
AND = 0x54  # BPF_ALU | BPF_AND | BPF_K
JUMP_IF_EQUAL = 0x15  # BPF_JMP | BPF_JEQ | BPF_K
RETURN = 0x06  # BPF_RET | BPF_K

FLAGS_AT = 13  # in the TCP header, where a packet begins for the filter of a TCP socket
SYN, SYN_OR_ACK = 0x02, 0x12
WHOLE_PACKET = 0xFFFFFFFF

# Instructions of (code, jump if true, jump if false, operand).
DROP_SYNS = (
    (LOAD_BYTE, 0, 0, FLAGS_AT),
    (AND, 0, 0, SYN_OR_ACK),
    (JUMP_IF_EQUAL, 0, 1, SYN),
    (RETURN, 0, 0, 0),
    (RETURN, 0, 0, WHOLE_PACKET),
)


def begin_no_more(listener: socket.socket) -> None:
    """Let no new handshake begin; connections whose handshake has begun still reach the listener.

    On Linux a SYN packet is dropped, so that its client sends it again about a second later, to the process that
    listens then, or to none, and is refused. The backlog alone can't do that: with no room in it, the last packets of
    concurrent handshakes are dropped too, and clients that believe themselves connected are reset when the listener
    closes. Elsewhere, and where the system has no such filter, the backlog must do.
    """
    if sys.platform == "linux":
        with suppress(OSError):
            _attach(listener, DROP_SYNS)
            return
    listener.listen(0)


def _attach(listener: socket.socket, instructions: tuple[tuple[int, int, int, int], ...]) -> None:
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *instruction) for instruction in instructions))
    program = struct.pack("HP", len(instructions), ctypes.addressof(code))
    listener.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, program)
