-- Questions that wait for a person or a caller at one gateway (its home), so that they can be seen and answered at every other:
-- forms and addresses in an inbox, and pages of ours. `body` is what it takes to show one. An answer that another gateway took is
-- written here first; its home takes it and says in `outcome` what came of it. A row goes with its question.
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
