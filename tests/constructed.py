"""What only some constructions have, for tests that know that it is there."""


def odds_of(found):
    assert found.odds is not None
    return found.odds


def variances_of(found):
    assert found.variances is not None
    return found.variances


def apart_of(found):
    assert found.apart is not None
    return found.apart
