//! Caches that are incomplete, damaged, not to be written, or in use.

use std::sync::mpsc;
use std::thread;

use super::*;

#[test]
fn offline_means_no_request_at_all() {
    let mut setup = Setup::new(single(), NO_FAULT);
    setup.settings.offline = true;
    let error = setup.fetch().unwrap_err();
    assert!(matches!(&error, HubError::Offline { missing, .. } if missing.ends_with("refs/main")), "{error}");
    assert!(error.to_string().starts_with("org/tiny: not complete in the cache"), "{error}");
    setup.settings.offline = false;
    let snapshot = setup.fetch().unwrap();
    setup.settings.offline = true;
    let n_requests = setup.hub.seen().len();
    assert_eq!(setup.fetch().unwrap(), snapshot);
    assert_eq!(setup.fetch_id(&format!("org/tiny@{COMMIT}")).unwrap(), snapshot);
    assert_eq!(setup.hub.seen().len(), n_requests);
    for name in ["config.json", "model.safetensors"] {
        fs::remove_file(snapshot.join(name)).unwrap();
        let error = setup.fetch().unwrap_err();
        assert!(matches!(&error, HubError::Offline { missing, .. } if missing.ends_with(name)), "{error}");
        fs::write(snapshot.join(name), "").unwrap();
    }
}

#[test]
fn offline_knows_which_shards_it_needs() {
    let mut setup = Setup::new(sharded(), NO_FAULT);
    let snapshot = setup.fetch().unwrap();
    setup.settings.offline = true;
    assert_eq!(setup.fetch().unwrap(), snapshot);
    fs::remove_file(snapshot.join("model-2.safetensors")).unwrap();
    let error = setup.fetch().unwrap_err();
    assert!(
        matches!(&error, HubError::Offline { missing, .. } if missing.ends_with("model-2.safetensors")),
        "{error}"
    );
    // The other files stay; only this one is fetched.
    setup.settings.offline = false;
    let n_before = setup.hub.seen().len();
    setup.fetch().unwrap();
    assert_eq!(setup.hub.seen().len(), n_before + 2, "the list and one file, whose blob is still there");
}

#[test]
fn without_a_network_the_cache_is_used() {
    let mut setup = Setup::new(single(), NO_FAULT);
    let snapshot = setup.fetch().unwrap();
    // Where nobody listens: a port that was free a moment ago may be another test's now, but the system gives no port this low.
    setup.settings.endpoint = "http://127.0.0.1:1".to_owned();
    setup.events.borrow_mut().clear();
    assert_eq!(setup.fetch().unwrap(), snapshot);
    assert_eq!(*setup.events.borrow(), ["from cache"]);
    assert_eq!(setup.waits(), [0u64; 0]);
    // A name that no resolver is asked for: it has an empty part.
    setup.settings.endpoint = "http://no..hub".to_owned();
    assert_eq!(setup.fetch().unwrap(), snapshot);
    assert_eq!(setup.waits(), [0u64; 0]);
    setup.settings.endpoint = "http://127.0.0.1:1".to_owned();
    // Not so when the hub answers that there is none.
    let error = setup.fetch_id("org/other").unwrap_err();
    assert!(matches!(error, HubError::Unreachable { .. }), "{error}");
    assert_eq!(setup.waits(), [1, 2, 4, 8]);
}

#[test]
fn a_half_written_cache_is_repaired() {
    let setup = Setup::new(single(), NO_FAULT);
    let snapshot = setup.fetch().unwrap();
    let blob = setup.cached(&format!("blobs/{}", sha256(&weights())));
    let file = snapshot.join("model.safetensors");
    let damage: [&dyn Fn(); 4] = [
        &|| fs::remove_file(&blob).unwrap(),
        &|| fs::write(&blob, &weights()[..1000]).unwrap(),
        &|| fs::remove_dir_all(&snapshot).unwrap(),
        &|| {
            // A link to another file.
            fs::remove_file(&file).unwrap();
            fs::write(&file, "x").unwrap();
        },
    ];
    for damage in damage {
        damage();
        setup.fetch().unwrap();
        assert_eq!(fs::read(&file).unwrap(), weights());
        assert_eq!(fs::read(&blob).unwrap(), weights());
    }
}

#[test]
fn a_cache_that_cannot_be_written_is_named() {
    let mut setup = Setup::new(single(), NO_FAULT);
    let file = setup.dir.path().join("file");
    fs::write(&file, "").unwrap();
    setup.settings.cache = file.join("hub");
    let error = setup.fetch().unwrap_err();
    assert!(matches!(&error, HubError::Cache { path, .. } if path.starts_with(&file)), "{error}");
    assert!(error.to_string().contains("HF_HUB_CACHE may name another folder"), "{error}");
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_said_to_be_full() {
    let setup = Setup::new(single(), NO_FAULT);
    fs::create_dir_all(setup.cached("blobs")).unwrap();
    std::os::unix::fs::symlink("/dev/full", setup.incomplete()).unwrap();
    let error = setup.fetch().unwrap_err();
    assert!(matches!(&error, HubError::DiskFull { path } if *path == setup.incomplete()), "{error}");
}

#[test]
fn two_at_once_fetch_each_file_once() {
    /// Holds the contents back until somebody waits for the lock.
    static GATE: Mutex<Option<mpsc::Receiver<()>>> = Mutex::new(None);
    let (open, gate) = mpsc::channel();
    *GATE.lock().unwrap() = Some(gate);
    let setup = Setup::new(single(), |request, _| {
        if request.path.starts_with("/model.safetensors")
            && let Some(gate) = GATE.lock().unwrap().take()
        {
            gate.recv().unwrap();
        }
        None
    });
    let fetch = |hub: Hub, open: mpsc::Sender<()>| {
        hub.fetch(&"org/tiny".parse().unwrap(), &mut |event| {
            // They may also wait for each other at a small file.
            if let HubEvent::Waiting { file: "model.safetensors", lock } = event {
                assert!(lock.ends_with(format!(".locks/models--org--tiny/{}.lock", sha256(&weights()))));
                open.send(()).unwrap();
            }
        })
    };
    let snapshots = thread::scope(|scope| {
        let both = [setup.hub(), setup.hub()].map(|hub| {
            let open = open.clone();
            scope.spawn(move || fetch(hub, open))
        });
        both.map(|thread| thread.join().unwrap().unwrap())
    });
    assert_eq!(snapshots[0], snapshots[1]);
    assert_eq!(fs::read(snapshots[0].join("model.safetensors")).unwrap(), weights());
    assert_eq!(setup.ranges(), [None]);
}
