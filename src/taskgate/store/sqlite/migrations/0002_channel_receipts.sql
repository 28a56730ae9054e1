-- What a channel needs to find its message about an approval again: kept until the message shows how it ended.
CREATE TABLE channel_receipts (
    approval_id TEXT NOT NULL,
    place       TEXT NOT NULL,
    workflow    TEXT NOT NULL,
    receipt     TEXT NOT NULL,
    PRIMARY KEY (approval_id, place)
) WITHOUT ROWID;
