-- Questions that wait for a person or a caller at one gateway (its home), so that they can be shown and answered at every other
-- gateway: forms and URLs in an inbox, and pages of the gateway. `body` has what is needed to show one. An answer that another
-- gateway received is written here first; its home delivers it and sets `outcome`. A row is deleted with its question.
CREATE TABLE open_questions (
    id         text COLLATE "C" PRIMARY KEY,
    tenant     text NOT NULL DEFAULT '',
    caller     text NOT NULL,
    home       text NOT NULL,
    expires_ms bigint NOT NULL,
    body       bytea NOT NULL,
    answer     bytea,
    outcome    text NOT NULL DEFAULT ''
);
CREATE INDEX open_questions_of_home ON open_questions (home);
