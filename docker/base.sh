#!/bin/sh
# Makes a base for the images from Debian's packages, where no registry can be reached, and tags it for buildah:
#   docker/base.sh localhost/fovea-base:bookworm
#   make images BUILD="buildah bud --format docker --isolation chroot --build-arg PYTHON_IMAGE=localhost/fovea-base:bookworm"
# It needs mmdebstrap, buildah and pip. BUILDAH may bring options, such as "buildah --root /a/folder".
set -eu
tag=$1
buildah=${BUILDAH:-buildah}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# The Dockerfiles remove pip at the end, which only an installation of its own lets them: Debian's belongs to dpkg.
python3 -m pip download --quiet --no-deps --only-binary=:all: --dest "$folder" pip
chmod 755 "$folder"
mmdebstrap --quiet --variant=minbase --include=python3,ca-certificates \
    --customize-hook="cp $folder/*.whl \"\$1/tmp\"" \
    --customize-hook='rm "$1"/usr/lib/python3*/EXTERNALLY-MANAGED' \
    --customize-hook='chroot "$1" sh -c "PYTHONPATH=\$(echo /tmp/pip-*.whl) python3 -m pip install --quiet --no-index --no-compile --root-user-action=ignore /tmp/*.whl"' \
    --customize-hook='rm "$1"/tmp/*.whl && ln -s /usr/bin/python3 "$1/usr/local/bin/python"' \
    bookworm "$folder/base.tar"

container=$($buildah from scratch)
$buildah add --quiet "$container" "$folder/base.tar" /
$buildah config --env PATH=/usr/local/bin:/usr/local/sbin:/usr/bin:/usr/sbin:/bin:/sbin --cmd python "$container"
$buildah commit --quiet --rm "$container" "$tag"
