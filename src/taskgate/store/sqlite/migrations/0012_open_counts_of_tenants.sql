-- The same counts for all callers of one tenant together. A tenant is the beginning of a caller's name, up to the first slash; what has a
-- colon before it is an address. Kept by the counts of the callers, whatever moves them.
INSERT INTO open_counts SELECT 'tenant ' || what, substr(who, 1, instr(who, '/') - 1), sum(count) FROM open_counts
WHERE what IN ('task', 'approval') AND instr(who, '/') > 1 AND instr(substr(who, 1, instr(who, '/') - 1), ':') = 0 GROUP BY 1, 2;

CREATE TRIGGER tenant_counted AFTER INSERT ON open_counts
WHEN NEW.what IN ('task', 'approval') AND instr(NEW.who, '/') > 1 AND instr(substr(NEW.who, 1, instr(NEW.who, '/') - 1), ':') = 0 BEGIN
    INSERT INTO open_counts VALUES ('tenant ' || NEW.what, substr(NEW.who, 1, instr(NEW.who, '/') - 1), NEW.count)
    ON CONFLICT (what, who) DO UPDATE SET count = count + excluded.count;
END;
CREATE TRIGGER tenant_recounted AFTER UPDATE OF count ON open_counts
WHEN NEW.what IN ('task', 'approval') AND instr(NEW.who, '/') > 1 AND instr(substr(NEW.who, 1, instr(NEW.who, '/') - 1), ':') = 0 BEGIN
    UPDATE open_counts SET count = count + NEW.count - OLD.count
    WHERE what = 'tenant ' || NEW.what AND who = substr(NEW.who, 1, instr(NEW.who, '/') - 1);
    DELETE FROM open_counts WHERE what = 'tenant ' || NEW.what AND who = substr(NEW.who, 1, instr(NEW.who, '/') - 1) AND count <= 0;
END;
