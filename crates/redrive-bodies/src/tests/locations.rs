//! Bodies in another location, or in one that is not mounted.

use super::*;

#[tokio::test]
async fn a_body_in_another_location_is_not_lost() {
    let fixture = BodyFixture::in_folder();
    let body = fixture.put_text("hello").await;
    let other = tempfile::tempdir().unwrap();
    let other = Bodies::open(&format!("file:{}", other.path().display())).unwrap();
    let read = other.get_verified(&fixture.store, &body, &me()).await;
    let Err(GetError::OtherLocation { stored, here }) = read else { panic!("{read:?}") };
    assert_eq!((&stored, &here), (fixture.bodies.location(), other.location()));
    let message = GetError::OtherLocation { stored, here }.to_string();
    assert!(
        message.contains(&fixture.bodies.location().id) && message.contains(&other.location().id),
        "{message}"
    );
    fixture.clock.advance(DAY);
    let collected = other.collect(&fixture.store, fixture.now(), DAY, 2).await.unwrap();
    assert_eq!(
        (collected, fixture.records().await),
        (0, 1),
        "a node that cannot reach the body does not delete its record"
    );
    // Once it was copied there, it is found.
    let file = fixture.files().remove(0);
    let folder = other.folder.as_ref().unwrap().join(file.parent().unwrap().file_name().unwrap());
    fs::create_dir_all(&folder).unwrap();
    fs::copy(&file, folder.join(file.file_name().unwrap())).unwrap();
    assert!(other.get_verified(&fixture.store, &body, &me()).await.is_ok());
    let collected = other.collect(&fixture.store, fixture.now(), DAY, 2).await.unwrap();
    assert_eq!((collected, fixture.records().await), (1, 0));
}

#[tokio::test]
async fn a_folder_that_is_not_mounted_is_unavailable_and_not_lost() {
    let fixture = BodyFixture::in_folder();
    let body = fixture.put_text("hello").await;
    let folder = fixture.folder.as_ref().unwrap().path();
    let away = folder.with_extension("away");
    fs::rename(folder, &away).unwrap();
    fs::create_dir(folder).unwrap();
    let read = fixture.bodies.get_verified(&fixture.store, &body, &me()).await;
    assert!(matches!(read, Err(GetError::Unavailable(_))), "{read:?}");
    fs::remove_dir(folder).unwrap();
    fs::rename(&away, folder).unwrap();
    assert!(fixture.bodies.get_verified(&fixture.store, &body, &me()).await.is_ok());
}
