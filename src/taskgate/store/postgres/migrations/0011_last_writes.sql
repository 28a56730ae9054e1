-- The number of each gateway's last committed transaction: after a lost connection it says whether the answer that never came would
-- have been yes. Not the transaction's own number: a server that crashed, or a standby that took its place, gives numbers of
-- transactions that never reached its log to others.
CREATE TABLE last_writes (
    owner  text COLLATE "C" PRIMARY KEY,
    number bigint NOT NULL
) WITH (fillfactor = 50);
