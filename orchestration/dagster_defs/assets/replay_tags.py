"""Name the tags of runs that replay batches."""

KIND_TAG = "forebay/kind"
REPLAY_KIND = "replay"
# Tags that say what a run replays, so that it can be found, beside FIRST_TAG: the last batch time, and their number.
LAST_TAG = "forebay/replays_to"
COUNT_TAG = "forebay/replays"
