"""Collections are there or not there, under their names, for each tenant."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from services.core.errors import InvalidField, NotFound
from services.embed.collections.storage.catalog import Catalog, check_name
from tests.embed.collections.stored import INFO, LIMITS, everything, new_image


def create(catalog: Catalog, *names: str) -> None:
    for name in names:
        catalog.create(replace(INFO, name=name)).close()


def test_what_was_created_is_there_also_when_the_catalog_is_opened_again(open_catalog: Callable[[], Catalog]) -> None:
    catalog = open_catalog()
    store = catalog.create(INFO)
    store.add([new_image("a", b"1")], LIMITS)
    before = everything(store)
    store.close()
    create(catalog, "another")
    catalog.close()
    catalog = open_catalog()
    assert catalog.names() == ["another", "birds"]
    store = catalog.open_store("birds")
    assert store.info == INFO
    assert everything(store) == before
    store.close()
    catalog.close()


def test_a_name_is_taken_once(catalog: Catalog) -> None:
    store = catalog.create(INFO)
    store.add([new_image("a", b"1")], LIMITS)
    with pytest.raises(FileExistsError, match="birds"):
        catalog.create(INFO)
    assert store.data("a") == b"1"
    store.close()


def test_a_deleted_collection_is_gone_and_its_name_is_free(catalog: Catalog) -> None:
    create(catalog, "birds", "other")
    store = catalog.open_store("birds")
    store.add([new_image("a", b"1")], LIMITS)
    store.close()
    catalog.delete("birds")
    assert catalog.names() == ["other"]
    for ask in (catalog.open_store, catalog.delete):
        with pytest.raises(NotFound, match="birds"):
            ask("birds")
    store = catalog.create(INFO)
    assert everything(store) == {}
    store.close()


def test_names_are_listed_by_code_points_and_differ_in_case(catalog: Catalog) -> None:
    names = ["Birds", "bIRDS", "birds", "x.Y_Z-9"]
    create(catalog, *names)
    assert catalog.names() == sorted(names)
    for name in names:
        store = catalog.open_store(name)
        assert store.info == replace(INFO, name=name)
        store.close()


def test_tenants_have_their_own_collections_of_the_same_name(catalog: Catalog) -> None:
    for tenant in ("default", "zoo"):
        store = catalog.create(INFO, tenant)
        store.add([new_image(tenant, tenant.encode())], LIMITS)
        store.close()
    assert catalog.tenants() == ["default", "zoo"]
    catalog.delete("birds")
    assert (catalog.names(), catalog.names("zoo")) == ([], ["birds"])
    store = catalog.open_store("birds", "zoo")
    assert list(everything(store)) == ["zoo"]
    store.close()


@pytest.mark.parametrize("name", ["a", "0", "A" * 64, "a.b_c-d", "v1.", "con"])
def test_letters_digits_dots_underscores_and_hyphens_make_a_name(catalog: Catalog, name: str) -> None:
    check_name(name)
    create(catalog, name)
    assert catalog.names() == [name]


@pytest.mark.parametrize(
    "name", ["", "a" * 65, ".", "..", ".a", "_a", "-a", "a/b", "a b", "a\n", "ä", "a\0", "=a", "\u0661"]
)
def test_anything_else_is_refused_as_a_name(catalog: Catalog, name: str) -> None:
    for use in (check_name, catalog.delete, catalog.open_store, lambda it: create(catalog, it)):
        with pytest.raises(InvalidField) as raised:
            use(name)
        assert raised.value.param == "name"
