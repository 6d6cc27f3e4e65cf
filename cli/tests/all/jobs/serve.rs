//! `larder top --serve` over real connections.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::TcpStream;

use super::*;

/// The name, the labels and the value of a sample.
type Sample = (String, HashMap<String, String>, f64);

fn serve(machine: &Machine) -> (Process, String) {
    let server = machine.start("server", &["top", "--serve", "0", &text(&machine.jobs())]);
    wait("its address", || !server.text().is_empty());
    let said = server.text();
    let address = said.trim().strip_prefix("http://").unwrap();
    let address = address.strip_suffix("/metrics").unwrap().to_owned();
    assert!(address.starts_with("127.0.0.1:"), "{address}");
    (server, address)
}

/// Sends a request. Returns the head and the body of the response.
fn ask(address: &str, request: &str) -> (String, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let length = format!("Content-Length: {}\r\n", body.len());
    assert!(head.contains(&length), "{head}");
    (head.to_owned(), body.to_owned())
}

fn scrape(address: &str) -> Vec<Sample> {
    let request = format!("GET /metrics HTTP/1.1\r\nHost: {address}\r\nAccept: */*\r\n\r\n");
    let (head, body) = ask(address, &request);
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    let kind = "\r\nContent-Type: application/openmetrics-text; version=1.0.0; charset=utf-8\r\n";
    assert!(head.contains(kind), "{head}");
    parse(&body)
}

/// Parses OpenMetrics text: the samples of a family follow its type, which is always gauge here,
/// and the text ends with `# EOF`.
fn parse(text: &str) -> Vec<Sample> {
    let lines = text.strip_suffix("# EOF\n").unwrap();
    let mut families: Vec<&str> = Vec::new();
    let mut samples: Vec<Sample> = Vec::new();
    for line in lines.lines() {
        if let Some(of) = line.strip_prefix("# TYPE ") {
            let family = of.strip_suffix(" gauge").unwrap();
            assert!(!families.contains(&family), "{family} twice");
            families.push(family);
        } else if let Some(of) = line.strip_prefix("# HELP ") {
            assert!(of.starts_with(&format!("{} ", families.last().unwrap())));
        } else {
            let (name, rest) = line.split_once('{').unwrap();
            assert_eq!(name, *families.last().unwrap());
            let (labels, rest) = parse_labels(rest);
            let number = rest.strip_prefix(' ').unwrap().parse().unwrap();
            let is_new = |(other, of, _): &Sample| other != name || *of != labels;
            assert!(samples.iter().all(is_new), "twice: {line}");
            samples.push((name.to_owned(), labels, number));
        }
    }
    samples
}

/// Parses labels. Returns them and the text after their closing brace.
fn parse_labels(mut rest: &str) -> (HashMap<String, String>, &str) {
    let mut labels = HashMap::new();
    loop {
        let (name, behind) = rest.split_once("=\"").unwrap();
        assert!(
            name.bytes().all(|letter| letter.is_ascii_lowercase()),
            "{name}"
        );
        let (mut value, mut letters) = (String::new(), behind.char_indices());
        let end = loop {
            match letters.next().unwrap() {
                (at, '"') => break at + 1,
                (_, '\\') => value.push(match letters.next().unwrap().1 {
                    'n' => '\n',
                    letter @ ('\\' | '"') => letter,
                    other => panic!("\\{other}"),
                }),
                (_, letter) => value.push(letter),
            }
        };
        labels.insert(name.to_owned(), value);
        rest = &behind[end..];
        match rest.strip_prefix(',') {
            Some(more) => rest = more,
            None => return (labels, rest.strip_prefix('}').unwrap()),
        }
    }
}

fn number(samples: &[Sample], job: &str, name: &str) -> Option<f64> {
    let name = format!("larder_job_{name}");
    let mut of = samples
        .iter()
        .filter(|(other, labels, _)| *other == name && labels["job"] == job);
    of.next().map(|(.., number)| *number)
}

#[test]
fn every_job_that_lives_is_served_by_whatever_name_and_one_that_dies_disappears() {
    let machine = Machine::new(TOTAL);
    let wide = machine.file("wide.trace", &trace(4, MIB, 12));
    let arguments = [
        &wide,
        "--passes",
        "100000",
        "--limit",
        "32MiB",
        "--priority",
        "3",
    ];
    let names = [
        "plain",
        "a\"b\\n,c=\"\nd}",
        "ü \t{# EOF\r\u{1b}[2J\u{85}\u{2028}",
    ];
    let mut jobs = names.map(|name| machine.job(name, &arguments));
    let (server, address) = serve(&machine);
    wait("all to be at work", || {
        let samples = scrape(&address);
        let held = |name: &&str| number(&samples, name, "held_bytes") > Some(0.0);
        names.iter().all(held)
    });
    let samples = scrape(&address);
    for name in names {
        assert_eq!(
            number(&samples, name, "limit_bytes"),
            Some(32.0 * MIB as f64)
        );
        assert_eq!(number(&samples, name, "share_ratio"), Some(1.0));
        assert_eq!(number(&samples, name, "priority"), Some(3.0));
        let top = machine.top(name);
        let pid = top["pid"].to_string();
        let is_it =
            |(name, labels, _): &&Sample| name == "larder_job_used_bytes" && labels["pid"] == pid;
        let (_, labels, _) = samples.iter().find(is_it).unwrap();
        assert_eq!(labels["job"], name);
        assert_eq!(labels["device"], top["gpus"][0]["gpu"]);
        assert_eq!(labels["folder"], text(&machine.jobs()));
    }
    jobs[1].kill();
    let of = |samples: &[Sample], name| number(samples, name, "held_bytes").is_some();
    let samples = scrape(&address);
    assert_eq!(names.map(|name| of(&samples, name)), [true, false, true]);
    jobs[0].terminate();
    jobs[0].end();
    let samples = scrape(&address);
    assert_eq!(names.map(|name| of(&samples, name)), [false, false, true]);
    drop(server);
}

#[test]
fn nothing_else_is_answered_and_ctrl_c_is_a_good_end() {
    let machine = Machine::new(TOTAL);
    let (mut server, address) = serve(&machine);
    for request in [
        "GET / HTTP/1.1\r\n\r\n",
        "GET /metricsx HTTP/1.1\r\n\r\n",
        "GET /metrics/../etc/passwd HTTP/1.1\r\n\r\n",
        "POST /metrics HTTP/1.1\r\n\r\n",
        "get /metrics HTTP/1.1\r\n\r\n",
        "\r\n\r\n",
    ] {
        let (head, _) = ask(&address, request);
        assert!(
            head.starts_with("HTTP/1.1 404 Not Found\r\n"),
            "{request:?}: {head}"
        );
    }
    let (head, _) = ask(&address, "GET /metrics?a=b HTTP/1.0\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    std::fs::remove_dir_all(machine.jobs()).unwrap();
    let (head, body) = ask(&address, "GET /metrics HTTP/1.1\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 500 "), "{head}");
    assert!(body.contains("name the folder"), "{body}");
    // A request that is too long is not read to its end.
    let mut stream = TcpStream::connect(&address).unwrap();
    let long = "x".repeat(1 << 20);
    let _ = stream.write_all(long.as_bytes());
    let _ = stream.read_to_end(&mut Vec::new());
    server.signal("-INT");
    server.end_well();
}

#[test]
fn an_address_that_is_taken_or_none_is_said() {
    let machine = Machine::new(TOTAL);
    let (_server, address) = serve(&machine);
    let jobs = text(&machine.jobs());
    let port = address.rsplit(':').next().unwrap();
    for (asked, code, words) in [
        (port, 1, "cannot listen on 127.0.0.1"),
        (&format!(":{port}"), 1, "cannot listen on 127.0.0.1"),
        ("x", 2, "give a port"),
        ("1.2.3.4", 2, "give a port"),
        ("65536", 2, "give a port"),
    ] {
        let output = machine.run(&["top", "--serve", asked, &jobs]);
        assert_eq!(output.status.code(), Some(code), "{asked}");
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains(words), "{asked}: {said}");
    }
    let nowhere = machine.run(&["top", "--serve", "0", "nowhere"]);
    assert_eq!(nowhere.status.code(), Some(2));
}
