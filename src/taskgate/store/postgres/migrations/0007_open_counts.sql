-- How many unfinished tasks and open approvals each caller has, so that a limit is checked by a few rows and not by counting them. Kept by
-- the database itself: whatever opens, ends or deletes a row moves the count in the same transaction. Each connection has a row of its own
-- (`part`), so that gateways do not wait for each other's commits; only the sum means something, and one part may be below zero.
CREATE TABLE open_counts (
    what  text COLLATE "C" NOT NULL,
    who   text COLLATE "C" NOT NULL,
    part  integer NOT NULL,
    count bigint NOT NULL,
    PRIMARY KEY (what, who, part)
);
INSERT INTO open_counts SELECT 'task', limited_as, 0, count(*) FROM tasks WHERE finished_ms IS NULL GROUP BY limited_as;
INSERT INTO open_counts SELECT 'approval', caller, 0, count(*) FROM approvals WHERE state = 'open' GROUP BY caller;
INSERT INTO open_counts SELECT 'anonymous approval', '', 0, count(*) FROM approvals
WHERE state = 'open' AND caller ~>=~ 'address:' AND caller ~<~ 'address;';

CREATE FUNCTION taskgate_count(kind text, whose text, change integer) RETURNS void LANGUAGE sql AS $$
    INSERT INTO open_counts VALUES (kind, whose, pg_backend_pid() % 64, change)
    ON CONFLICT (what, who, part) DO UPDATE SET count = open_counts.count + EXCLUDED.count;
$$;

CREATE FUNCTION taskgate_count_task() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    before integer := 0;
    after integer := 0;
BEGIN
    IF TG_OP <> 'INSERT' AND OLD.finished_ms IS NULL THEN before := 1; END IF;
    IF TG_OP <> 'DELETE' AND NEW.finished_ms IS NULL THEN after := 1; END IF;
    IF before <> after THEN
        PERFORM taskgate_count('task', CASE WHEN TG_OP = 'DELETE' THEN OLD.limited_as ELSE NEW.limited_as END, after - before);
    END IF;
    RETURN NULL;
END $$;

CREATE FUNCTION taskgate_count_approval() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    before integer := 0;
    after integer := 0;
    whose text;
BEGIN
    IF TG_OP <> 'INSERT' AND OLD.state = 'open' THEN before := 1; END IF;
    IF TG_OP <> 'DELETE' AND NEW.state = 'open' THEN after := 1; END IF;
    IF before <> after THEN
        whose := CASE WHEN TG_OP = 'DELETE' THEN OLD.caller ELSE NEW.caller END;
        PERFORM taskgate_count('approval', whose, after - before);
        -- Callers without an identity are limited together, too; their keys begin with `address:`.
        IF starts_with(whose, 'address:') THEN
            PERFORM taskgate_count('anonymous approval', '', after - before);
        END IF;
    END IF;
    RETURN NULL;
END $$;

CREATE TRIGGER count_tasks AFTER INSERT OR DELETE OR UPDATE OF finished_ms ON tasks
FOR EACH ROW EXECUTE FUNCTION taskgate_count_task();
CREATE TRIGGER count_approvals AFTER INSERT OR DELETE OR UPDATE OF state ON approvals
FOR EACH ROW EXECUTE FUNCTION taskgate_count_approval();

DROP INDEX approvals_open_of_caller;
