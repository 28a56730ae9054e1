-- The number of each gateway's last committed transaction: after a lost connection it shows whether the transaction was
-- committed. PostgreSQL's own transaction number is not used: a server that crashed, or a standby that replaced it, reuses the
-- numbers of transactions that never reached its log.
CREATE TABLE last_writes (
    owner  text COLLATE "C" PRIMARY KEY,
    number bigint NOT NULL
) WITH (fillfactor = 50);
