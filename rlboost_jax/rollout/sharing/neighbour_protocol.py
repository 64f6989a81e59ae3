"""What rollout servers of different runs on one device say to each other: one JSON line each.

The server that presides over the auction says `device`; the others say what it is worth to their
runs, and that they have let go of it. Nobody says what it computes.
"""

from typing import Annotated, Final

import msgspec

MAX_LINE_BYTES: Final = 4096

# Beyond any that a manager comes to, and finite: an infinite one could never be outbid.
Price = Annotated[float, msgspec.Meta(ge=0, le=1e12)]
Turn = Annotated[int, msgspec.Meta(ge=0, lt=2**53)]


class DeviceBid(msgspec.Struct, frozen=True, kw_only=True, tag="bid", tag_field="type"):
    """What the device is worth to the sender's run, until the next."""

    price: Price


class LetGo(msgspec.Struct, frozen=True, kw_only=True, tag="let_go", tag_field="type"):
    """The sender uses the device no more."""

    turn: Turn  # of the `DeviceGiven` that asked for it


class DeviceGiven(msgspec.Struct, frozen=True, kw_only=True, tag="device", tag_field="type"):
    """Whether the receiver may use the device from now on; if not, it says when it has let go."""

    yours: bool
    turn: Turn  # larger each time


decode_said = msgspec.json.Decoder(DeviceBid | LetGo).decode
decode_given = msgspec.json.Decoder(DeviceGiven).decode
encode_line = msgspec.json.Encoder().encode
