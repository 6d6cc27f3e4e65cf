#!/bin/sh
# Builds liblarder and installs it: the shared and the static library, larder.h, and files for pkg-config and CMake.
#
#   std-shim/preload/install.sh [--prefix FOLDER] [--libdir NAME] [--uninstall]
#
# The folder is /usr/local unless given; $DESTDIR is put in front of it, as packages need it. The libraries go to its
# folder `lib`, or to another such as `lib64` or `lib/x86_64-linux-gnu`. Where root has no cargo:
# sudo env "PATH=$PATH" std-shim/preload/install.sh
set -eu
here=$(cd "$(dirname "$0")" && pwd)
fail() {
    echo "install.sh: $1" >&2
    exit 2
}
prefix=/usr/local
libdir=lib
uninstalls=
while [ $# -gt 0 ]; do
    case $1 in
        --prefix)
            [ $# -gt 1 ] || fail '--prefix needs a folder'
            prefix=$2
            shift
            ;;
        --prefix=*) prefix=${1#*=} ;;
        --libdir)
            [ $# -gt 1 ] || fail '--libdir needs a name'
            libdir=$2
            shift
            ;;
        --libdir=*) libdir=${1#*=} ;;
        --uninstall) uninstalls=yes ;;
        --help) sed -n '2,/^set/s/^# \{0,1\}//p' "$0" && exit ;;
        *) fail "there is no option $1; --help says which there are" ;;
    esac
    shift
done
case $prefix in /*) ;; *) fail "the prefix must be an absolute path, not '$prefix'" ;; esac
case $libdir in '' | /* | */ | *..* | *//*) fail "--libdir is the name of a folder in the prefix, not '$libdir'" ;; esac
to=${DESTDIR-}$prefix
lib=$to/$libdir
cmake=$lib/cmake/larder

if [ "$uninstalls" ]; then
    rm -f "$lib"/liblarder.so* "$lib/liblarder.a" "$to/include/larder.h" "$lib/pkgconfig/larder.pc"
    rm -rf "$cmake"
    exit
fi

version=$(sed -n 's/^version = "\(.*\)"/\1/p' "$here/Cargo.toml")
soname=liblarder.so.${version%%.*}
# A folder of its own: a library that is used where cargo puts it has no soname.
target=${CARGO_TARGET_DIR:-$here/target}/install
cargo rustc --quiet --release --locked --manifest-path "$here/Cargo.toml" --target-dir "$target" -- \
    -C "link-arg=-Wl,-soname,$soname"

mkdir -p "$lib/pkgconfig" "$to/include" "$cmake"
install -m 755 "$target/release/liblarder.so" "$lib/liblarder.so.$version"
ln -sf "liblarder.so.$version" "$lib/$soname"
ln -sf "$soname" "$lib/liblarder.so"
install -m 644 "$target/release/liblarder.a" "$lib"
# A program may have operators of its own.
objcopy --wildcard --weaken-symbol='_Zn[wa]m*' --weaken-symbol='_Zd[la]Pv*' "$lib/liblarder.a"
install -m 644 "$here/larder.h" "$to/include"
cat >"$lib/pkgconfig/larder.pc" <<PC
prefix=$prefix
libdir=\${prefix}/$libdir
Name: larder
Description: Larder's process heap as malloc
Version: $version
Cflags: -I\${prefix}/include
Libs: -L\${libdir} -llarder
Libs.private: -ldl -pthread
PC
cat >"$cmake/larder-config-version.cmake" <<CMAKE
set(PACKAGE_VERSION $version)
if(NOT PACKAGE_FIND_VERSION VERSION_GREATER PACKAGE_VERSION)
    set(PACKAGE_VERSION_COMPATIBLE TRUE)
endif()
if(PACKAGE_FIND_VERSION VERSION_EQUAL PACKAGE_VERSION)
    set(PACKAGE_VERSION_EXACT TRUE)
endif()
CMAKE
cat >"$cmake/larder-config.cmake" <<CMAKE
if(NOT TARGET larder::larder)
    get_filename_component(_lib "\${CMAKE_CURRENT_LIST_DIR}/../.." ABSOLUTE)
    get_filename_component(_include "\${_lib}/$(echo "$libdir" | sed 's|[^/]*|..|g')/include" ABSOLUTE)
    add_library(larder::larder SHARED IMPORTED)
    set_target_properties(larder::larder PROPERTIES IMPORTED_SONAME $soname
        IMPORTED_LOCATION "\${_lib}/liblarder.so.$version" INTERFACE_INCLUDE_DIRECTORIES "\${_include}")
    add_library(larder::static STATIC IMPORTED)
    set_target_properties(larder::static PROPERTIES INTERFACE_LINK_LIBRARIES "dl;pthread"
        IMPORTED_LOCATION "\${_lib}/liblarder.a" INTERFACE_INCLUDE_DIRECTORIES "\${_include}")
endif()
CMAKE
# The loader finds a new library in a system's folder once this has run.
[ "${DESTDIR-}" ] || [ "$(id -u)" != 0 ] || ldconfig
