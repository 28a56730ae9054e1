-- How many unfinished tasks and open approvals each caller has, so that a limit is checked by one row and not by counting them. Kept by
-- the database itself: whatever opens, ends or deletes a row moves the count in the same transaction.
CREATE TABLE open_counts (
    what  TEXT NOT NULL,
    who   TEXT NOT NULL,
    count INTEGER NOT NULL,
    PRIMARY KEY (what, who)
) WITHOUT ROWID;
INSERT INTO open_counts SELECT 'task', limited_as, count(*) FROM tasks WHERE finished_ms IS NULL GROUP BY limited_as;
INSERT INTO open_counts SELECT 'approval', caller, count(*) FROM approvals WHERE state = 'open' GROUP BY caller;
-- Callers without an identity are limited together, too; their keys begin with `address:`.
INSERT INTO open_counts SELECT 'anonymous approval', '', count(*) FROM approvals
WHERE state = 'open' AND caller >= 'address:' AND caller < 'address;';

CREATE TRIGGER task_opened AFTER INSERT ON tasks WHEN NEW.finished_ms IS NULL BEGIN
    INSERT INTO open_counts VALUES ('task', NEW.limited_as, 1) ON CONFLICT (what, who) DO UPDATE SET count = count + 1;
END;
CREATE TRIGGER task_finished AFTER UPDATE OF finished_ms ON tasks WHEN OLD.finished_ms IS NULL AND NEW.finished_ms IS NOT NULL BEGIN
    UPDATE open_counts SET count = count - 1 WHERE what = 'task' AND who = NEW.limited_as;
    DELETE FROM open_counts WHERE what = 'task' AND who = NEW.limited_as AND count <= 0;
END;
CREATE TRIGGER open_task_deleted AFTER DELETE ON tasks WHEN OLD.finished_ms IS NULL BEGIN
    UPDATE open_counts SET count = count - 1 WHERE what = 'task' AND who = OLD.limited_as;
END;

CREATE TRIGGER approval_opened AFTER INSERT ON approvals WHEN NEW.state = 'open' BEGIN
    INSERT INTO open_counts VALUES ('approval', NEW.caller, 1) ON CONFLICT (what, who) DO UPDATE SET count = count + 1;
    UPDATE open_counts SET count = count + 1 WHERE what = 'anonymous approval' AND NEW.caller >= 'address:' AND NEW.caller < 'address;';
END;
CREATE TRIGGER approval_closed AFTER UPDATE OF state ON approvals WHEN OLD.state = 'open' AND NEW.state <> 'open' BEGIN
    UPDATE open_counts SET count = count - 1 WHERE what = 'approval' AND who = NEW.caller;
    DELETE FROM open_counts WHERE what = 'approval' AND who = NEW.caller AND count <= 0;
    UPDATE open_counts SET count = count - 1 WHERE what = 'anonymous approval' AND NEW.caller >= 'address:' AND NEW.caller < 'address;';
END;
CREATE TRIGGER open_approval_deleted AFTER DELETE ON approvals WHEN OLD.state = 'open' BEGIN
    UPDATE open_counts SET count = count - 1 WHERE what = 'approval' AND who = OLD.caller;
    UPDATE open_counts SET count = count - 1 WHERE what = 'anonymous approval' AND OLD.caller >= 'address:' AND OLD.caller < 'address;';
END;

DROP INDEX approvals_open_of_caller;
