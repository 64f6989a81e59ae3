"""Rewards that know of a response's length."""


def overlong_penalty(
    num_tokens: int, *, max_tokens: int, band_tokens: float, penalty: float
) -> float:
    """What a long response loses: 0 before the band, `penalty` at its end, a line in between.

    Args:
        num_tokens: of the response.
        max_tokens: where the band ends and responses are cut off.
        band_tokens: length of the band, above 0.

    Source: Yu et al. 2025, arXiv:2503.14476, equation 13.
    """
    within = num_tokens - (max_tokens - band_tokens)
    return penalty * min(max(within / band_tokens, 0.0), 1.0)
