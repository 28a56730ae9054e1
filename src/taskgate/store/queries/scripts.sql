-- name: put_script
INSERT INTO scripts (task_id, step, doc, snapshot) VALUES (:task_id, :step, :doc, :snapshot)
ON CONFLICT (task_id) DO UPDATE SET step = excluded.step, doc = excluded.doc, snapshot = excluded.snapshot
WHERE scripts.step < excluded.step;

-- name: find_script
SELECT doc, snapshot FROM scripts WHERE task_id = :task_id;

-- name: put_script_call
INSERT INTO script_calls (script_id, number, line, task_id) VALUES (:script_id, :number, :line, :task_id);

-- name: forget_script_calls
DELETE FROM script_calls WHERE script_id IN (SELECT value FROM json_each(:ids));

-- name: forget_scripts
DELETE FROM scripts WHERE task_id IN (SELECT value FROM json_each(:ids));

-- name: children_of_scripts
SELECT task_id FROM script_calls WHERE script_id IN (SELECT value FROM json_each(:ids));

-- A call whose outcome the script has received asks nothing. Only the others are looked up.

-- name: asking_calls
SELECT c.task_id FROM script_calls c
WHERE c.script_id = :script_id AND c.delivered_step IS NULL
    AND EXISTS (SELECT 1 FROM questions q WHERE q.task_id = c.task_id AND q.state = 'open')
ORDER BY c.number;
