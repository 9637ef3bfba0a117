//! Bodies that are in another place, or in one that is away.

use super::*;

#[tokio::test]
async fn a_body_of_another_place_is_elsewhere_and_not_lost() {
    let world = World::in_folder();
    let body = world.put_text("hello").await;
    let other = tempfile::tempdir().unwrap();
    let other = Bodies::open(&format!("file:{}", other.path().display())).unwrap();
    let read = other.verified(&world.store, &body, &me()).await;
    let Err(GetError::Elsewhere { stored, here }) = read else { panic!("{read:?}") };
    assert_eq!((&stored, &here), (world.bodies.place(), other.place()));
    let told = GetError::Elsewhere { stored, here }.to_string();
    assert!(told.contains(&world.bodies.place().id) && told.contains(&other.place().id), "{told}");
    world.clock.advance(DAY);
    let collected = other.collect(&world.store, world.now(), DAY, 2).await.unwrap();
    assert_eq!((collected, world.records().await), (0, 1), "who cannot reach it does not forget it");
    // Copied there it is found, wherever it was stored.
    let file = world.files().remove(0);
    let folder = other.folder.as_ref().unwrap().join(file.parent().unwrap().file_name().unwrap());
    fs::create_dir_all(&folder).unwrap();
    fs::copy(&file, folder.join(file.file_name().unwrap())).unwrap();
    assert!(other.verified(&world.store, &body, &me()).await.is_ok());
    let collected = other.collect(&world.store, world.now(), DAY, 2).await.unwrap();
    assert_eq!((collected, world.records().await), (1, 0));
}

#[tokio::test]
async fn a_folder_that_is_not_mounted_is_unavailable_and_nothing_in_it_is_lost() {
    let world = World::in_folder();
    let body = world.put_text("hello").await;
    let folder = world.folder.as_ref().unwrap().path();
    let away = folder.with_extension("away");
    fs::rename(folder, &away).unwrap();
    fs::create_dir(folder).unwrap();
    let read = world.bodies.verified(&world.store, &body, &me()).await;
    assert!(matches!(read, Err(GetError::Unavailable(_))), "{read:?}");
    fs::remove_dir(folder).unwrap();
    fs::rename(&away, folder).unwrap();
    assert!(world.bodies.verified(&world.store, &body, &me()).await.is_ok());
}
