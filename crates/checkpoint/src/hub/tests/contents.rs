//! Bodies that are cut off, too long, too short, or another file's.

use super::server::Length;
use super::*;

/// The contents of the weights, in whatever way: not what the hub says about them.
fn is_contents(request: &Request) -> bool {
    request.path.starts_with("/model.safetensors")
}

fn n_weights() -> u64 {
    weights().len() as u64
}

#[test]
fn a_cut_connection_is_resumed() {
    // 200,000 bytes of each of the first two answers.
    let cut: Fault =
        |request, n| (is_contents(request) && n < 2).then(|| stored(&single(), request).cut_at(200_000));
    let setup = Setup::new(single(), cut);
    let snapshot = setup.fetch().unwrap();
    assert_eq!(fs::read(snapshot.join("model.safetensors")).unwrap(), weights());
    let ranges = setup.ranges();
    assert_eq!(ranges, [None, Some("bytes=200000-".to_owned()), Some("bytes=400000-".to_owned())]);
    assert_eq!(setup.waits(), [1, 2]);
    assert!(!setup.incomplete().exists());
}

#[test]
fn the_next_run_goes_on_where_this_one_ended() {
    let cut: Fault = |request, n| {
        (is_contents(request) && n < 5).then(|| {
            let reply = stored(&single(), request);
            if n == 0 { reply.cut_at(300_000) } else { reply.cut_at(0) }
        })
    };
    let setup = Setup::new(single(), cut);
    let error = setup.fetch().unwrap_err();
    assert!(
        matches!(error, HubError::Interrupted { received: 300_000, expected, .. } if expected == n_weights()),
        "{error}"
    );
    assert!(error.to_string().contains("org/tiny: model.safetensors"), "{error}");
    assert_eq!(setup.waits(), [1, 2, 4, 8]);
    assert_eq!(fs::metadata(setup.incomplete()).unwrap().len(), 300_000);
    assert!(!setup.cached("refs/main").exists(), "a branch never stands for half a model");

    let snapshot = setup.fetch().unwrap();
    assert_eq!(setup.ranges().last().unwrap().as_deref(), Some("bytes=300000-"));
    assert_eq!(fs::read(snapshot.join("model.safetensors")).unwrap(), weights());
}

#[test]
fn a_server_that_cannot_resume_starts_again() {
    let whole: Fault = |request, n| {
        is_contents(request).then(|| {
            let reply = Reply::new(200).body(weights());
            if n == 0 { reply.cut_at(100_000) } else { reply }
        })
    };
    let other_place: Fault = |request, n| match n {
        _ if !is_contents(request) => None,
        0 => Some(Reply::new(200).body(weights()).cut_at(100_000)),
        1 => Some(Reply::new(206).header("content-range", "bytes 5-9/10").body("12345")),
        _ => None,
    };
    let unsatisfiable: Fault = |request, n| match n {
        _ if !is_contents(request) => None,
        0 => Some(Reply::new(200).body(weights()).cut_at(100_000)),
        1 => Some(Reply::new(416)),
        _ => None,
    };
    for (fault, waits) in [(whole, vec![1]), (other_place, vec![1, 2]), (unsatisfiable, vec![1, 2])] {
        let setup = Setup::new(single(), fault);
        let snapshot = setup.fetch().unwrap();
        assert_eq!(fs::read(snapshot.join("model.safetensors")).unwrap(), weights());
        assert_eq!(setup.waits(), waits);
    }
}

#[test]
fn lies_about_the_length_are_found() {
    let longer: Fault =
        |request, _| is_contents(request).then(|| Reply::new(200).body([weights(), vec![0]].concat()));
    let shorter: Fault = |request, _| is_contents(request).then(|| Reply::new(200).body(&weights()[1..]));
    let claims_less: Fault = |request, _| {
        is_contents(request).then(|| Reply::new(200).body(weights()).length(Length::Claimed(10)))
    };
    let long_chunks: Fault = |request, _| {
        is_contents(request)
            .then(|| Reply::new(200).body([weights(), vec![0]].concat()).length(Length::Chunked))
    };
    let n = n_weights();
    for (fault, length) in [(longer, n + 1), (shorter, n - 1), (claims_less, 10), (long_chunks, n + 1)] {
        let setup = Setup::new(single(), fault);
        let error = setup.fetch().unwrap_err();
        assert!(
            matches!(error, HubError::WrongLength { expected, found, .. } if (expected, found) == (n, length)),
            "{error}"
        );
        assert_eq!(setup.waits(), [0u64; 0], "nothing better is to come");
    }

    // An end without an announced length cannot be told from a cut connection.
    let short_chunks: Fault = |request, _| {
        is_contents(request).then(|| Reply::new(200).body(&weights()[1..]).length(Length::Chunked))
    };
    let setup = Setup::new(single(), short_chunks);
    let error = setup.fetch().unwrap_err();
    assert!(matches!(error, HubError::Interrupted { .. }), "{error}");
    assert_eq!(setup.waits(), [1, 2, 4, 8]);
}

#[test]
fn another_files_bytes_are_refused() {
    let other: Fault = |request, _| {
        is_contents(request).then(|| {
            let mut bytes = weights();
            bytes[1000] ^= 1;
            Reply::new(200).body(bytes)
        })
    };
    let setup = Setup::new(single(), other);
    let error = setup.fetch().unwrap_err();
    assert!(
        matches!(&error, HubError::WrongHash { expected, .. } if *expected == sha256(&weights())),
        "{error}"
    );
    assert!(!setup.incomplete().exists());
    assert!(!setup.cached(&format!("blobs/{}", sha256(&weights()))).exists());
    assert_eq!(setup.ranges().len(), 1);
}

#[test]
fn pieces_that_do_not_fit_are_fetched_once_more_in_one() {
    let setup = Setup::new(single(), NO_FAULT);
    fs::create_dir_all(setup.cached("blobs")).unwrap();
    for damaged in [vec![9; 1000], vec![9; weights().len()], vec![9; weights().len() + 1]] {
        fs::write(setup.incomplete(), &damaged).unwrap();
        let snapshot = setup.fetch().unwrap();
        assert_eq!(fs::read(snapshot.join("model.safetensors")).unwrap(), weights());
        fs::remove_file(setup.cached(&format!("blobs/{}", sha256(&weights())))).unwrap();
    }
    // What is too long is known to be wrong without any request.
    assert_eq!(setup.ranges(), [Some("bytes=1000-".to_owned()), None, None, None]);
}

#[test]
fn an_empty_file_is_a_file() {
    let setup =
        Setup::new(files([("config.json", b"{}".to_vec()), ("model.safetensors", Vec::new())]), NO_FAULT);
    let snapshot = setup.fetch().unwrap();
    assert_eq!(fs::metadata(snapshot.join("model.safetensors")).unwrap().len(), 0);
}
