CREATE TABLE words(id INTEGER PRIMARY KEY, seed INTEGER, word TEXT);
WITH RECURSIVE n(i, s) AS (SELECT 1, 12345 UNION ALL SELECT i + 1, (s * 1103515245 + 12345) % 2147483648 FROM n WHERE i < 40000)
INSERT INTO words SELECT i, s, substr(hex(zeroblob(s % 40)), 1, s % 70) || s FROM n;
CREATE INDEX by_word ON words(word);
CREATE INDEX by_seed ON words(seed % 100, word);
SELECT count(*), sum(length(word)), min(word), max(word) FROM words;
SELECT seed % 10, count(*), sum(seed), max(length(word)) FROM words GROUP BY 1 ORDER BY 1;
SELECT count(*) FROM words a JOIN words b ON a.word = substr(b.word, 1, 12) AND a.id < b.id;
UPDATE words SET word = word || 'x' || id WHERE id % 3 = 0;
DELETE FROM words WHERE seed % 7 = 0;
SELECT group_concat(word) FROM (SELECT word FROM words ORDER BY seed DESC LIMIT 20);
VACUUM;
PRAGMA integrity_check;
